"""What a result must be, kept where it is compared: on the host, or for large problems on the device.

The device's float64 product comes from a plain kernel that shares no code with what is measured, and a sample of it is
computed again on the host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Protocol

import numpy as np

from sparsegen import backends
from sparsegen.errors import SparsegenError
from sparsegen.executor import Buffer, CompiledKernel, Executor, LoadedKernel
from sparsegen.family import Array, Launch, empty_as_one
from sparsegen.formats import CsrMatrix
from sparsegen.operators import DType, Epilogue, Layout, Reference, SpmmProblem

THREADS = 256
COMPARING_BLOCKS = 1024
MOST_ON_DEVICE = 1 << 28  # elements, of 12 bytes each
CHECKED_ELEMENTS = 64  # of the device's product, held against the host's
ROUNDING = 1e-12  # of sums in float64, relative to the sum of absolute values
SIGNIFICAND_BITS = {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}


class Judge(Protocol):
    """Knows what a result on the device must be."""

    def worst_error(self, result: Buffer) -> float:
        """The largest error over its bound; at most 1 is right, NaN counts as infinite."""

    def explain(self, result: Buffer) -> str:
        """How many values are wrong, and the worst one."""


def judge(
    problem: SpmmProblem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
) -> Judge:
    """The judge of a problem on given operands (in storage form).

    On a CUDA device it works there, unless the result is so large that its reference would take half of the memory of
    a small one. The emulator is no faster than the host.
    """
    if executor.device.backend == "cuda" and problem.m * problem.n <= MOST_ON_DEVICE:
        return DeviceJudge(problem, matrix, operands, executor)
    return HostJudge(problem, matrix, operands, executor)


def compiled_kernels(executor: Executor, *names: tuple[str, str]) -> list[LoadedKernel]:
    """Kernels of ``sparsegen/cuda``, by file and entry; compiled side by side where the cache has them not."""
    toolchain = backends.toolchain(executor.device)

    def compiled(name: tuple[str, str]) -> CompiledKernel:
        file, entry = name
        source = (files("sparsegen") / "cuda" / file).read_text(encoding="utf-8")
        return toolchain.compile("plain", entry, source)

    with ThreadPoolExecutor(len(names)) as pool:
        return [executor.load(kernel) for kernel in pool.map(compiled, names)]


def elementwise(count: int) -> Launch:
    """A thread for each element."""
    return Launch((-(-count // THREADS), 1, 1), (THREADS, 1, 1))


class HostJudge:
    """Downloads results and compares them in strips, on all cores."""

    def __init__(
        self, problem: SpmmProblem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
    ) -> None:
        threads = os.cpu_count() or 1
        self._problem, self._executor = problem, executor
        self._reference = problem.reference(matrix, dict(operands), threads=threads)
        self._threads = ThreadPoolExecutor(threads)
        self._count = threads

    def worst_error(self, result: Buffer) -> float:
        stored = _downloaded(self._problem, result, self._executor)
        rows, reference = stored.shape[0], self._reference
        step = max(1, -(-rows // self._count))

        def strip(start: int) -> float:
            part = slice(start, start + step)
            strip = Reference(reference.exact[part], reference.bound[part], reference.dtype)
            return strip.worst_error(stored[part])

        return max(self._threads.map(strip, range(0, rows, step)), default=0.0)

    def explain(self, result: Buffer) -> str:
        return _explained(self._reference, _downloaded(self._problem, result, self._executor))


class DeviceJudge:
    """Computes the reference and compares on the device; only the verdict comes to the host.

    Raises:
        SparsegenError: the device's product differs from the host's, so that nothing can be judged.
    """

    def __init__(
        self, problem: SpmmProblem, matrix: CsrMatrix, operands: Mapping[str, Array], executor: Executor
    ) -> None:
        self._problem, self._executor = problem, executor
        self._count = problem.m * problem.n
        self._exact = executor.allocate(max(8, self._count * 8))
        self._bound = executor.allocate(max(8, self._count * 4))  # sums of absolute values, then the bound
        self._worst = executor.allocate(4)
        names = (
            ("reference.cu", "spmm_reference"),
            ("verdict.cu", "spmm_bound"),
            ("verdict.cu", f"worst_error_{problem.dtype}"),
        )
        multiply, set_bound, self._compare = compiled_kernels(executor, *names)
        if not self._count:
            return
        values = problem.dtype.from_storage(problem.dtype.to_storage(matrix.values)).astype(np.float32)
        real = {name: problem.dtype.from_storage(a).astype(np.float32) for name, a in operands.items()}
        # Kept until the kernels have run.
        offsets, columns, held, b, bias = (
            executor.upload(empty_as_one(array))
            for array in (
                matrix.row_offsets,
                matrix.column_indices,
                values,
                real["b"],
                real.get("bias", np.zeros(1, np.float32)),
            )
        )
        p, by_rows = problem, problem.layout is Layout.ROW
        b_steps, c_steps = ((p.n, 1), (p.n, 1)) if by_rows else ((1, p.k), (1, p.m))
        each = elementwise(self._count)
        factors: list[Buffer | int] = [p.m, p.n, offsets, columns, held, b, *b_steps, *c_steps]
        executor.launch(multiply, each, [*factors, self._exact, self._bound])
        executor.synchronize()
        self._check(matrix.with_values(values), real["b"])
        epilogue = [int(p.epilogue.has_bias), int(p.epilogue is Epilogue.BIAS_RELU)]
        kinds: list[Buffer | int] = [p.m, p.n, *c_steps, *epilogue, SIGNIFICAND_BITS[p.dtype]]
        executor.launch(set_bound, each, [*kinds, offsets, bias, self._exact, self._bound])
        executor.synchronize()

    def worst_error(self, result: Buffer) -> float:
        if not self._count:
            return 0.0
        self._executor.fill(self._worst, 0)
        launch = Launch((COMPARING_BLOCKS, 1, 1), (THREADS, 1, 1))
        arguments: list[Buffer | int] = [self._count, result, self._exact, self._bound, self._worst]
        self._executor.launch(self._compare, launch, arguments)
        self._executor.synchronize()
        worst = np.empty(1, dtype=np.float32)
        self._executor.download(self._worst, worst)
        return float(worst[0])

    def explain(self, result: Buffer) -> str:
        exact, bound = self._downloaded()
        return _explained(
            Reference(exact, bound.astype(np.float64), self._problem.dtype),
            _downloaded(self._problem, result, self._executor),
        )

    def _downloaded(self) -> tuple[Array, Array]:
        shape = self._problem.result.shape
        exact, bound = np.empty(shape, np.float64), np.empty(shape, np.float32)
        self._executor.download(self._exact, exact)
        self._executor.download(self._bound, bound)
        return exact, bound

    def _check(self, matrix: CsrMatrix, b: Array) -> None:
        """Hold some elements of the bare product against float64 on the host."""
        exact, magnitude = self._downloaded()
        by_rows = self._problem.layout is Layout.ROW
        rng = np.random.default_rng(1)
        for _ in range(CHECKED_ELEMENTS):
            row, column = int(rng.integers(self._problem.m)), int(rng.integers(self._problem.n))
            part = slice(int(matrix.row_offsets[row]), int(matrix.row_offsets[row + 1]))
            indices, values = matrix.column_indices[part], matrix.values[part].astype(np.float64)
            factors = b[indices, column] if by_rows else b[column, indices]
            right, place = float(values @ factors), (row, column) if by_rows else (column, row)
            if not abs(float(exact[place]) - right) <= ROUNDING * (1.0 + float(magnitude[place])):
                raise SparsegenError(
                    f"the device's float64 product is wrong: {float(exact[place])!r} at {place}, {right!r} on the "
                    "host; nothing can be verified on this device"
                )


def _downloaded(problem: SpmmProblem, result: Buffer, executor: Executor) -> Array:
    spec = problem.result
    stored = np.empty(spec.shape, dtype=spec.dtype.storage)
    if stored.size:
        executor.download(result, stored)
    return stored


def _explained(reference: Reference, stored: Array) -> str:
    actual = reference.dtype.from_storage(stored).astype(np.float64)
    error = np.abs(actual - reference.exact) / reference.bound
    error[np.isnan(error)] = np.inf
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    wrong = int(np.count_nonzero(error > 1.0))
    index = ", ".join(str(int(i)) for i in place)
    return (
        f"{wrong} of {error.size} values are wrong; the worst is c[{index}] = {actual[place]:.6g}, which "
        f"should be {reference.exact[place]:.6g} ± {reference.bound[place]:.2g}"
    )
