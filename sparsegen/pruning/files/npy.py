"""Weights in a ``.npy`` file: one array, named for the file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.numpy_files import read_array
from sparsegen.pruning.files.container import Masks
from sparsegen.pruning.weights import NumpyWeights


class NpyFile(NumpyWeights):
    """The array is in memory while this object is."""

    def __init__(self, path: Path, budget: MemoryBudget) -> None:
        with path.open("rb") as stream:
            array = read_array(path, stream, path.stat().st_size, None, budget)
            super().__init__({path.stem: array}, str(path))

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        for name in pruned:
            np.lib.format.write_array(target, self.pruned(name, masks(name)), allow_pickle=False)
