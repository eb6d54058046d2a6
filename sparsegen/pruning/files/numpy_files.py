"""Weights in NumPy's files: one array (``.npy``), several by name, or a sparse matrix of SciPy (``.npz``)."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.readers.numpy_files import (
    open_archive,
    open_member,
    read_array,
    read_array_header,
    read_member,
    read_npz,
)
from sparsegen.pruning.weights import Masks, NumpyWeights, WeightSpec, value_type
from sparsegen.system.numpy_types import Array


class NpyFile(NumpyWeights):
    """The array is in memory while this object is."""

    def __init__(self, path: Path, budget: MemoryBudget) -> None:
        with path.open("rb") as stream:
            array = read_array(path, stream, path.stat().st_size, None, budget)
            super().__init__({path.stem: array}, str(path))

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        for name in pruned:
            np.lib.format.write_array(target, self.pruned(name, masks(name)), allow_pickle=False)


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
