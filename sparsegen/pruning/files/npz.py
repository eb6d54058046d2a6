"""Weights in a ``.npz`` file: arrays by name, each read when it is needed."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.readers.numpy_files import open_archive, open_member, read_array_header, read_member
from sparsegen.pruning.files.container import Masks
from sparsegen.pruning.weights import NumpyWeights, WeightSpec, value_type
from sparsegen.system.numpy_types import Array


class NpzFile:
    """File of `numpy.savez`. Members that are not pruned are copied as they are, and never unpickled."""

    def __init__(self, path: Path, budget: MemoryBudget) -> None:
        self._path, self.source, self._budget = path, str(path), budget
        self.specs: list[WeightSpec] = []
        with open_archive(path) as archive:
            self._members = {info.filename: info for info in archive.infolist()}
            for member, info in self._members.items():
                if not member.endswith(".npy"):
                    self.specs.append(WeightSpec(member, (), "bytes", None))
                    continue
                name = member.removesuffix(".npy")
                with open_member(path, archive, info, name) as stream:
                    header = read_array_header(path, stream, name)
                dtype = header.dtype.name
                self.specs.append(WeightSpec(name, header.shape, dtype, value_type(dtype)))

    def read(self, name: str) -> Array:
        return NumpyWeights({name: self._stored(name)}).read(name)

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        with open_archive(self._path) as archive, zipfile.ZipFile(target, "w") as copy:
            for member, info in self._members.items():
                # A new ZipInfo has a fixed date: the same weights make the same file.
                written = zipfile.ZipInfo(member)
                written.compress_type = info.compress_type
                name = member.removesuffix(".npy")
                with copy.open(written, "w", force_zip64=True) as stream:
                    if name != member and name in pruned:
                        layer = NumpyWeights({name: self._stored(name)})
                        np.lib.format.write_array(stream, layer.pruned(name, masks(name)), allow_pickle=False)
                    else:
                        with open_member(self._path, archive, info, name) as kept:
                            shutil.copyfileobj(kept, stream)

    def _stored(self, name: str) -> Array:
        with open_archive(self._path) as archive:
            return read_member(self._path, archive, self._members[f"{name}.npy"], name, self._budget)
