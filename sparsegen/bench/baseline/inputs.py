"""The arrays of one row as files, made once, memory-mapped by every baseline's process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from sparsegen.bench.patterns.case import Case
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Problem
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.records import Workload

SHARED_MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30  # shared memory is used where this much of it is free: two of the largest rows


@contextmanager
def inputs_folder() -> Iterator[Path]:
    """A temporary folder, in shared memory where there is room, gone at the end."""
    roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= ROOM_BYTES
    with tempfile.TemporaryDirectory(
        prefix="sparsegen-bench-", dir=SHARED_MEMORY if roomy else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files of a row's arrays, and the known properties of its matrix.

    Attributes:
        pattern: folder of the matrix, which rows share: ``offsets``, ``columns``, and the values in storage
            form by the dtype's name.
        folder: the row's folder: operands, and results that wait to be checked.
        computed: fraction of the problem's operations that the operands need.
    """

    problem: Problem
    pattern: Path
    folder: Path
    fingerprint: str
    features: Features
    computed: float = 1.0

    @property
    def workload(self) -> Workload:
        """Workload that is tuned and looked up for the row."""
        return Workload(self.problem, self.fingerprint, self.features)

    def matrix(self) -> CsrMatrix:
        """Mapped; float32 values, rounded to the problem's dtype."""
        offsets, columns = (_mapped(self.pattern / f"{name}.npy") for name in ("offsets", "columns"))
        values = self.problem.dtype.from_storage(self.encoded()).astype(np.float32, copy=False)
        return CsrMatrix(self.problem.matrix_shape, offsets, columns, values)

    def encoded(self) -> Array:
        """The matrix's values in the problem's storage dtype."""
        return _mapped(self.pattern / f"{self.problem.dtype}.npy")

    def operand(self, name: str) -> Array:
        """A dense input in storage form; ``values`` where each batch element has its own."""
        return _mapped(self.folder / f"operand-{name}.npy")

    def operands(self) -> dict[str, Array]:
        """All of them, as `Problem.reference` takes them."""
        nnz = self.features.nnz
        own = self.problem.own_values(nnz)
        specs = (*self.problem.operands(nnz), *(() if own is None else (own,)))
        return {spec.name: self.operand(spec.name) for spec in specs}

    def store_result(self, result: Array) -> Path:
        """The file that holds a result of this process, for another one to see; the next result takes its place."""
        file = self.folder / f"result-{os.getpid()}.npy"
        np.save(file, result)
        return file

    @property
    def row_offsets(self) -> Array:
        return _mapped(self.pattern / "offsets.npy")

    def discard(self, *, with_pattern: bool) -> None:
        """Delete the files; who has mapped them keeps them until done."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if with_pattern:
            shutil.rmtree(self.pattern, ignore_errors=True)


class InputsMaker:
    """Makes inputs one after the other; consecutive cases of one pattern share its files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._kept: tuple[object, CsrMatrix, Path] | None = None
        self._seen: tuple[object, str, Features] | None = None  # features that problems share

    def make(self, case: Case, dtype: DType, seed: int = 0) -> Inputs:
        """Write a case's matrix and operands.

        Raises:
            MatrixError: the case's matrix cannot be had.
        """
        problem = case.in_dtype(dtype)
        if self._kept is None or self._kept[0] != case.pattern:
            self._kept = None  # freed before the next is made
            self._kept = (case.pattern, *self._write_pattern(case))
        _, matrix, pattern = self._kept
        if not (pattern / f"{dtype}.npy").exists():
            np.save(pattern / f"{dtype}.npy", dtype.to_storage(matrix.values))
        self._count += 1
        folder = self._folder / f"row-{self._count}"
        folder.mkdir()
        rng = np.random.default_rng(seed)
        operands = case.pattern.operands(problem, matrix.nnz, rng)
        for name, operand in operands.items():
            np.save(folder / f"operand-{name}.npy", operand)
        computed = problem.computed_share(matrix, operands)
        return Inputs(problem, pattern, folder, *self._facts(problem, case, matrix), computed)

    def _facts(self, problem: Problem, case: Case, matrix: CsrMatrix) -> tuple[str, Features]:
        """Fingerprint and features."""
        key = case.pattern if problem.has_pattern else problem
        if self._seen is None or self._seen[0] != key:
            self._seen = (key, problem.fingerprint(matrix), problem.features(matrix))
        return self._seen[1:]

    def _write_pattern(self, case: Case) -> tuple[CsrMatrix, Path]:
        matrix = case.pattern.matrix()
        folder = self._folder / f"pattern-{self._count + 1}"
        folder.mkdir()
        np.save(folder / "offsets.npy", matrix.row_offsets)
        np.save(folder / "columns.npy", matrix.column_indices)
        return matrix, folder


def stored_result(file: Path) -> Array:
    """Reads a result that `Inputs.store_result` wrote."""
    return _mapped(file)


def _mapped(path: Path) -> Array:
    """An array of a file; an empty one cannot be mapped and is read."""
    return cast(Array, np.load(path, mmap_mode=None if path.stat().st_size <= 256 else "r"))
