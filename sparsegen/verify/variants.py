"""Runs a bound variant on fresh random inputs and holds its result against the reference."""

from __future__ import annotations

import math

import numpy as np

from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.binding import BoundVariant
from sparsegen.system.numpy_types import Array
from sparsegen.verify.guarded import GuardedBuffer
from sparsegen.verify.verifier import verifier
from sparsegen.verify.written import WrittenOperands

UNWRITTEN = 0xFF  # as every byte it makes NaN in every dtype


class CheckedCall:
    """A call of a bound variant on random operands of its own, verified once when it is made.

    The output is filled with NaN before it, and lies between guards. Where the elements of a batch have values of their
    own, the variant gets new ones.

    Args:
        value_order: the one that the variant was bound with (`bind_variant`).

    Attributes:
        worst: the largest error over its bound: right is at most 1; infinite when an output was not written, or
            something outside of it was.

    Raises:
        LaunchError, KernelFault: the kernel could not run, or was caught at a fault.
        SparsegenError: the device's reference differs from the host's, so that nothing can be verified.
    """

    def __init__(
        self,
        variant: BoundVariant,
        problem: Problem,
        matrix: CsrMatrix,
        rng: np.random.Generator,
        value_order: Array | None = None,
    ) -> None:
        operands = problem.random_operands(rng, matrix.nnz)
        self._executor = executor = variant.executor
        with executor.entered():
            given = [executor.upload(operands[spec.name]) for spec in variant.operands]
            if problem.value_sets > 1:
                values = executor.upload(empty_as_one(_in_order(operands["values"], value_order)))
                variant.gather_values(values, 0)
                executor.synchronize()
            self._result = GuardedBuffer(executor, variant.result.nbytes)
            executor.fill(self._result, UNWRITTEN)
            executor.synchronize()
            self._buffers = (*given, self._result)
            self._addresses = [buffer.address for buffer in self._buffers]
            self._bound = variant.bound()
            self()
            executor.synchronize()
            self._verifier = verifier(problem, matrix, operands, executor)
            named = {spec.name: buffer for spec, buffer in zip(variant.operands, given, strict=True)}
            self._written = WrittenOperands(problem, matrix, operands, named, executor)
            self._trespass = self._result.trespass()
            self._own_worst = math.inf if self._trespass else self._verifier.worst_error(self._result)
            self.worst = max(self._own_worst, self._written.worst_error())

    def __call__(self) -> None:
        """Launch again."""
        self._bound(0, *self._addresses)

    def explain(self) -> str:
        """Describes the error: the number of wrong values of the result and the worst one, or what was written outside
        of it.
        """
        if self._trespass:
            return self._trespass
        with self._executor.entered():
            if self._own_worst <= 1.0 and self._written.worst_error() > 1.0:
                return self._written.explain()
            return self._verifier.explain(self._result)


def _in_order(values: Array, order: Array | None) -> Array:
    """Each batch element's values of the nonzeros, where a variant that was bound with this order looks for them."""
    if order is None:
        return values
    placed = np.empty_like(values)
    placed[..., order] = values
    return placed


def worst_error(
    variant: BoundVariant, problem: Problem, matrix: CsrMatrix, rng: np.random.Generator
) -> float:
    """The largest error of one launch over its bound; see `CheckedCall`."""
    return CheckedCall(variant, problem, matrix, rng).worst
