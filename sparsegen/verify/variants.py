"""Runs a bound variant on fresh random inputs and holds its result against the reference."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.plan.binding import BoundVariant
from sparsegen.system.device_memory import Address
from sparsegen.system.numpy_types import Array
from sparsegen.verify import bounds
from sparsegen.verify.verifier import verifier


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


GUARD_BYTES = 1 << 16  # before and behind, a multiple of what any access must be aligned to
PATTERN = 0x5A


class GuardedBuffer:
    """Device memory of ``nbytes`` bytes with a guard on both sides.

    Attributes:
        address, nbytes: place and size of the memory between the guards.
    """

    def __init__(self, executor: Executor, nbytes: int) -> None:
        """Raises LaunchError where there is not enough memory."""
        self._executor = executor
        self._whole = executor.allocate(nbytes + 2 * GUARD_BYTES)
        self.address, self.nbytes = self._whole.address + GUARD_BYTES, nbytes
        self._guards = {
            "before": Address(self._whole.address, GUARD_BYTES),
            "behind": Address(self.address + nbytes, GUARD_BYTES),
        }
        self.watch()

    def watch(self) -> None:
        """Have the guards as they must stay."""
        for guard in self._guards.values():
            self._executor.fill(guard, PATTERN)

    def trespass(self) -> str:
        """Describes what was written outside; empty if nothing was. The kernels must have ended."""
        for side, guard in self._guards.items():
            found = np.empty(guard.nbytes, np.uint8)
            self._executor.download(guard, found)
            written = np.flatnonzero(found != PATTERN)
            if written.size:
                nearest = GUARD_BYTES - int(written[-1]) if side == "before" else int(written[0]) + 1
                return f"{written.size} bytes {side} the result were written, the nearest {nearest} bytes outside of it"
        return ""


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
