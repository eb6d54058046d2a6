"""Tools of a baseline in its process: a device, and the arrays of the current row."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Problem
from sparsegen.plan.packings import Packings
from sparsegen.system.numpy_types import Array

P = TypeVar("P", bound=Problem)


class Workbench:
    """One row in one baseline's process; what it uploads lives as long as the bench.

    Args:
        db: the tuning database of `sparsegen bench --db`; None for the user's own.
    """

    def __init__(self, inputs: Inputs, executor: Executor, db: str | None = None) -> None:
        self.inputs, self.executor, self.db = inputs, executor, db
        self.problem: Problem = inputs.problem
        self.features: Features = inputs.features
        self._uploaded: dict[str, Buffer] = {}

    @property
    def device(self) -> Device:
        return self.executor.device

    @cached_property
    def matrix(self) -> CsrMatrix:
        """The sparse matrix (or the pattern), float32 values rounded to the problem's dtype."""
        return self.inputs.matrix()

    @cached_property
    def packings(self) -> Packings:
        """The matrix as our variants take it: packed once for all that take the same."""
        return Packings(self.matrix, self.executor)

    @cached_property
    def encoded(self) -> Array:
        """The matrix's values in the problem's storage dtype."""
        return self.inputs.encoded()

    def problem_as(self, kind: type[P]) -> P:
        """The problem, of an operator that the baseline has said it computes."""
        assert isinstance(self.problem, kind)
        return self.problem

    def operand(self, name: str) -> Array:
        """A dense input in storage form, on the host; ``values`` where each batch element has its own."""
        return self.inputs.operand(name)

    def upload(self, name: str) -> Buffer:
        """A dense input on the device; uploaded once."""
        if name not in self._uploaded:
            self._uploaded[name] = self.executor.upload(empty_as_one(self.operand(name)))
        return self._uploaded[name]

    def result(self) -> ResultBuffer:
        """A result buffer in the problem's stored shape."""
        spec = self.problem.result(self.features.nnz)
        assert isinstance(spec.dtype, DType)  # not always the problem's dtype: totals of 16 bits are float32
        return ResultBuffer(self.executor, spec.dtype, spec.shape)


class ResultBuffer:
    """Device memory for a result.

    Args:
        shape: shape as the baseline writes it, row-major.
        transposed: true if that is the transpose of the problem's.
        buffer: memory that the baseline writes to; by default new memory.
    """

    def __init__(
        self,
        executor: Executor,
        dtype: DType,
        shape: tuple[int, ...],
        *,
        transposed: bool = False,
        buffer: Buffer | None = None,
    ) -> None:
        self._executor, self._dtype, self._shape, self._transposed = executor, dtype, shape, transposed
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.buffer = buffer or executor.allocate(size)

    def clear(self) -> None:
        """NaN everywhere."""
        self._fill(0xFF)

    def clear_to_zero(self) -> None:
        """Fill with zeros, for routines that scale what was there by 0 instead of ignoring it."""
        self._fill(0)

    def _fill(self, byte: int) -> None:
        self._executor.fill(self.buffer, byte)
        self._executor.synchronize()

    def read(self) -> Array:
        """Wait, download, and turn round if need be."""
        self._executor.synchronize()
        out: Array = np.empty(self._shape, dtype=self._dtype.storage)
        self._executor.download(self.buffer, out)
        return np.ascontiguousarray(out.T) if self._transposed else out
