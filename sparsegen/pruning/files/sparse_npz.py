"""A sparse matrix that ``scipy.sparse.save_npz`` wrote, as weights: one tensor, named for the file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.readers.numpy_files import read_npz
from sparsegen.pruning.files.container import Masks
from sparsegen.pruning.weights import NumpyWeights


class SparseNpzFile(NumpyWeights):
    """A matrix that is sparse already, dense in memory while this object is; its zeros are weights like others.

    What is written is CSR, whatever format was read, float64 if the file's values were, else float32.
    """

    def __init__(self, path: Path, budget: MemoryBudget) -> None:
        # NaN and infinities are refused later, with their index in the matrix.
        matrix = as_csr(read_npz(path, None, budget), allow_nonfinite=True, source=str(path))
        rows, columns = matrix.shape
        budget.require(rows * columns * matrix.values.itemsize, f"{rows} × {columns} dense weights")
        try:
            dense = matrix.to_scipy().toarray()
        except (MemoryError, ValueError) as error:  # NumPy's ValueError: more elements than an array can have
            raise MatrixError(f"{rows} × {columns} weights do not fit into memory", source=path) from error
        super().__init__({path.stem: dense}, str(path))

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        for name in pruned:
            import scipy.sparse

            scipy.sparse.save_npz(target, scipy.sparse.csr_array(self.pruned(name, masks(name))))
