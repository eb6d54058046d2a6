"""The operands that a call writes beside its result, held against what they must be."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.system.numpy_types import Array
from sparsegen.verify import bounds


class WrittenOperands:
    """Knows what the operands of `Problem.written_references` must be; there may be none.

    Args:
        operands: the call's operands, in storage form.
        buffers: all operands on the device, by name.
    """

    def __init__(
        self,
        problem: Problem,
        matrix: CsrMatrix,
        operands: Mapping[str, Array],
        buffers: Mapping[str, Buffer],
        executor: Executor,
    ) -> None:
        self._specs = [spec for spec in problem.operands(matrix.nnz) if spec.is_written]
        self._buffers, self._executor = buffers, executor
        threads = os.cpu_count() or 1
        self._references = (
            problem.written_references(matrix, dict(operands), threads=threads) if self._specs else {}
        )

    def worst_error(self) -> float:
        """The largest error over its bound; 0 where there are none."""
        found = (
            bounds.worst_error(self._references[spec.name], self._stored(spec.name)) for spec in self._specs
        )
        return max(found, default=0.0)

    def explain(self) -> str:
        """Describes the first operand that is wrong: the number of wrong values, and the worst one."""
        wrong = next(
            spec.name
            for spec in self._specs
            if bounds.worst_error(self._references[spec.name], self._stored(spec.name)) > 1.0
        )
        return bounds.explain(self._references[wrong], self._stored(wrong), wrong)

    def _stored(self, name: str) -> Array:
        spec = next(spec for spec in self._specs if spec.name == name)
        stored = np.empty(spec.shape, dtype=spec.dtype.storage)
        self._executor.download(self._buffers[name], stored)
        return stored
