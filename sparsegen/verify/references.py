"""What a result must be, kept where it is compared: on the host, or for large problems on the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.backends.plain import THREADS, compiled_kernels
from sparsegen.kernels.base import Array
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem, Reference, TensorSpec
from sparsegen.verify.device_references import device_reference, has_device_reference

COMPARING_BLOCKS = 1024
MOST_ON_DEVICE = 1 << 28  # elements, of 12 bytes each


class Judge(Protocol):
    """Knows what a result on the device must be."""

    def worst_error(self, result: Buffer) -> float:
        """The largest error over its bound; at most 1 is right, NaN counts as infinite."""

    def explain(self, result: Buffer) -> str:
        """How many values are wrong, and the worst one."""


def judge(problem: Problem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor) -> Judge:
    """The judge of a problem on given operands (in storage form).

    On a CUDA device it works there, unless the operator has no reference for it, or the result is so large that its
    reference would take half of the memory of a small one. The emulator is no faster than the host.
    """
    written = problem.result(matrix.nnz)
    fits = written.nbytes <= MOST_ON_DEVICE * written.dtype.itemsize
    if executor.device.backend == "cuda" and has_device_reference(problem) and fits:
        return DeviceJudge(problem, matrix, operands, executor)
    return HostJudge(problem, matrix, operands, executor)


class HostJudge:
    """Downloads results and compares them in strips, on all cores."""

    def __init__(
        self, problem: Problem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
    ) -> None:
        threads = os.cpu_count() or 1
        self._written, self._executor = problem.result(matrix.nnz), executor
        self._reference = problem.reference(matrix, dict(operands), threads=threads)
        self._threads = ThreadPoolExecutor(threads)
        self._count = threads

    def worst_error(self, result: Buffer) -> float:
        stored = _downloaded(self._written, result, self._executor)
        rows, reference = stored.shape[0], self._reference
        step = max(1, -(-rows // self._count))

        def strip(start: int) -> float:
            part = slice(start, start + step)
            strip = Reference(reference.exact[part], reference.bound[part], reference.dtype)
            return strip.worst_error(stored[part])

        return max(self._threads.map(strip, range(0, rows, step)), default=0.0)

    def explain(self, result: Buffer) -> str:
        stored = _downloaded(self._written, result, self._executor)
        return _explained(self._reference, stored, self._written)


class DeviceJudge:
    """Computes the reference and compares on the device; only the verdict comes to the host.

    Raises:
        SparsegenError: the device's product differs from the host's, so that nothing can be judged.
    """

    def __init__(
        self, problem: Problem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
    ) -> None:
        self._written, self._executor = problem.result(matrix.nnz), executor
        self._count = self._written.nbytes // self._written.dtype.itemsize
        self._reference = device_reference(problem, matrix, operands, executor)
        self._worst = executor.allocate(4)
        (self._compare,) = compiled_kernels(executor, ("verdict.cu", f"worst_error_{self._written.dtype}"))

    def worst_error(self, result: Buffer) -> float:
        if not self._count:
            return 0.0
        self._executor.fill(self._worst, 0)
        launch = Launch((COMPARING_BLOCKS, 1, 1), (THREADS, 1, 1))
        exact, bound = self._reference.exact, self._reference.bound
        arguments: list[Buffer | int] = [self._count, result, exact, bound, self._worst]
        self._executor.launch(self._compare, launch, arguments)
        self._executor.synchronize()
        worst = np.empty(1, dtype=np.float32)
        self._executor.download(self._worst, worst)
        return float(worst[0])

    def explain(self, result: Buffer) -> str:
        exact, bound = self._reference.download(self._written.shape, self._executor)
        reference = Reference(exact, bound.astype(np.float64), self._written.dtype)
        return _explained(reference, _downloaded(self._written, result, self._executor), self._written)


def _downloaded(spec: TensorSpec, result: Buffer, executor: Executor) -> Array:
    stored = np.empty(spec.shape, dtype=spec.dtype.storage)
    if stored.size:
        executor.download(result, stored)
    return stored


def _explained(reference: Reference, stored: Array, spec: TensorSpec) -> str:
    actual = reference.dtype.from_storage(stored).astype(np.float64)
    error = np.abs(actual - reference.exact) / reference.bound
    error[np.isnan(error)] = np.inf
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    wrong = int(np.count_nonzero(error > 1.0))
    index = ", ".join(str(int(i)) for i in place)
    return (
        f"{wrong} of {error.size} values are wrong; the worst is {spec.name}[{index}] = {actual[place]:.6g}, "
        f"which should be {reference.exact[place]:.6g} ± {reference.bound[place]:.2g}"
    )
