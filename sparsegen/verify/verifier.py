"""Results in a device's memory held against their reference: on the host, or for large problems on the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import PlainKernels
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DeviceReference, Problem, Reference, TensorSpec, terms_stride
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array
from sparsegen.verify import bounds
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.sample import ROWS, require_sample

COMPARING = "compare.cu"  # the plain kernels that compare
MOST_WARPS = 8192  # warps that compare, each some of the elements
MOST_ON_DEVICE = 1 << 29  # elements, of 12 bytes each


class Verifier(Protocol):
    """Knows what a result on the device must be.

    Attributes:
        source: place of the reference's computation, in words; empty for the host.
    """

    source: str

    def worst_error(self, result: Buffer, bound: ErrorBound | None = None) -> float:
        """The largest error over its bound, by default ours; at most 1 is right, NaN counts as infinite."""

    def explain(self, result: Buffer) -> str:
        """Describes the wrong values by our bound: their number, and the worst one."""

    def reference(self) -> Reference:
        """The reference on the host."""


def verifier(
    problem: Problem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
) -> Verifier:
    """The verifier of a problem on given operands (in storage form).

    On a CUDA device it works there, unless the operator has no reference for it, or the result is so large that its
    reference would take half of the memory of a small one. The emulator is no faster than the host.

    Raises:
        SparsegenError: the device's reference differs from the host's, so that nothing can be verified.
        LaunchError: the device has not enough memory.
    """
    written = problem.result(matrix.nnz)
    if executor.device.backend == "cuda" and written.nbytes <= MOST_ON_DEVICE * written.dtype.itemsize:
        found = DeviceVerifier.of(problem, matrix, operands, executor)
        if found is not None:
            return found
    return HostVerifier(problem, matrix, operands, executor)


class HostVerifier:
    """Computes the reference on the host, and downloads results to compare them there, on all cores."""

    source = ""

    def __init__(
        self, problem: Problem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
    ) -> None:
        self._written, self._executor = problem.result(matrix.nnz), executor
        self._reference = problem.reference(matrix, dict(operands), threads=os.cpu_count() or 1)

    def worst_error(self, result: Buffer, bound: ErrorBound | None = None) -> float:
        return bounds.worst_error(self._reference, _downloaded(self._written, result, self._executor), bound)

    def explain(self, result: Buffer) -> str:
        stored = _downloaded(self._written, result, self._executor)
        return bounds.explain(self._reference, stored, self._written.name)

    def reference(self) -> Reference:
        return self._reference


class DeviceVerifier:
    """Keeps the reference on the device and compares there; only the largest error comes to the host.

    Args:
        written: the result.
    """

    source = f"float64 on the device, {ROWS} rows of it checked on the host"

    def __init__(
        self, written: TensorSpec, reference: DeviceReference, device: PlainKernels, executor: Executor
    ) -> None:
        self._written, self._reference = written, reference
        self._device, self._executor = device, executor
        self._count = written.nbytes // written.dtype.itemsize
        self._terms = device.upload(reference.terms.astype(np.float32).reshape(-1))
        self._factors: dict[ErrorBound, Buffer] = {}

    @classmethod
    def of(
        cls, problem: Problem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
    ) -> DeviceVerifier | None:
        """Has the device compute the reference; None where the operator has no kernels for it."""
        device = PlainKernels(executor)
        reference = problem.reference_on(matrix, operands, device)
        if reference is None:
            return None
        device.finish()
        require_sample(problem, matrix, operands, reference, device)
        return cls(problem.result(matrix.nnz), reference, device, executor)

    def worst_error(self, result: Buffer, bound: ErrorBound | None = None) -> float:
        if not self._count:
            return 0.0
        dtype, terms = self._reference.dtype, self._reference.terms
        device, worst = self._device, self._device.filled(4)
        sizes = (self._count, terms_stride(self._written.shape, terms.shape), terms.size)
        arrays = (result, self._reference.exact, self._reference.magnitude, self._terms)
        factors = self._factors_of(bound or ErrorBound.ours(dtype))
        warps = min(ceil_div(self._count, WARP), MOST_WARPS)
        device.run(f"{COMPARING}:worst_error_{dtype}", warps, *sizes, *arrays, factors, worst)
        found = float(device.download(worst, 1, np.float32)[0])
        device.finish()
        return found

    def _factors_of(self, bound: ErrorBound) -> Buffer:
        if bound not in self._factors:
            factors = np.array([bound.sums, bound.typical, bound.exact, bound.smallest], np.float32)
            self._factors[bound] = self._device.upload(factors)
        return self._factors[bound]

    def explain(self, result: Buffer) -> str:
        stored = _downloaded(self._written, result, self._executor)
        return bounds.explain(self.reference(), stored, self._written.name)

    def reference(self) -> Reference:
        return self._reference.download(self._written.shape, self._device)


def _downloaded(spec: TensorSpec, result: Buffer, executor: Executor) -> Array:
    stored = np.empty(spec.shape, dtype=spec.dtype.storage)
    if stored.size:
        executor.download(result, stored)
    return stored
