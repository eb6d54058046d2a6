"""Exact results computed on a CUDA device, where a problem's operator has a plain kernel for that.

The kernels (``sparsegen/cuda/reference.cu``) share no code with what is measured: one thread for each element, float64
sums. A sample of what they give is computed again on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.errors import SparsegenError
from sparsegen.executor import Address, Buffer, CompiledKernel, Executor, LoadedKernel
from sparsegen.family import Array, Launch, empty_as_one
from sparsegen.formats import CsrMatrix
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    Problem,
    SddmmEpilogue,
    SddmmProblem,
    SpmmProblem,
)

THREADS = 256
CHECKED_ELEMENTS = 64  # of the device's product, held against the host's
ROUNDING = 1e-12  # of sums in float64, relative to the sum of absolute values
SIGNIFICAND_BITS = {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}

Operands = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class DeviceReference:
    """Exact values (float64) and their bounds (float32) on the device, in the result's stored order."""

    exact: Buffer
    bound: Buffer


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


def has_device_reference(problem: Problem) -> bool:
    """Whether `device_reference` computes the problem's operator."""
    return type(problem) in _REFERENCES


def device_reference(
    problem: Problem, matrix: CsrMatrix, operands: Operands, executor: Executor
) -> DeviceReference:
    """The reference of a problem on given operands (in storage form).

    Raises:
        SparsegenError: the device's product differs from the host's, so that nothing can be judged.
    """
    written = problem.result(matrix.nnz)
    count = written.nbytes // written.dtype.itemsize
    # The bound is first the sums of absolute values.
    reference = DeviceReference(executor.allocate(max(8, count * 8)), executor.allocate(max(4, count * 4)))
    each = count // problem.batch
    for i, (own, given) in enumerate(problem.items(matrix, operands) if count else ()):
        values = problem.dtype.from_storage(problem.dtype.to_storage(own.values)).astype(np.float32)
        real = {name: problem.dtype.from_storage(a).astype(np.float32) for name, a in given.items()}
        part = DeviceReference(
            Address(reference.exact.address + i * each * 8, each * 8),
            Address(reference.bound.address + i * each * 4, each * 4),
        )
        _REFERENCES[type(problem)](problem.item, own.with_values(values), real, executor, part)
    return reference


def download(reference: DeviceReference, shape: tuple[int, ...], executor: Executor) -> tuple[Array, Array]:
    """Exact values and bounds on the host."""
    exact, bound = np.empty(shape, np.float64), np.empty(shape, np.float32)
    executor.download(reference.exact, exact)
    executor.download(reference.bound, bound)
    return exact, bound


def _spmm(
    problem: SpmmProblem, matrix: CsrMatrix, real: Operands, executor: Executor, into: DeviceReference
) -> None:
    names = (("reference.cu", "spmm_reference"), ("verdict.cu", "spmm_bound"))
    multiply, set_bound = compiled_kernels(executor, *names)
    offsets, columns, held, b, bias, residual = (  # kept until the kernels have run
        executor.upload(empty_as_one(array))
        for array in (
            matrix.row_offsets,
            matrix.column_indices,
            matrix.values,
            real["b"],
            *(real.get(name, np.zeros(1, np.float32)) for name in ("bias", "residual")),
        )
    )
    p, by_rows = problem, problem.layout is Layout.ROW
    b_steps, c_steps = ((p.n, 1), (p.n, 1)) if by_rows else ((1, p.k), (1, p.m))
    each = elementwise(p.m * p.n)
    factors: list[Buffer | int] = [p.m, p.n, offsets, columns, held, b, *b_steps, *c_steps]
    executor.launch(multiply, each, [*factors, into.exact, into.bound])
    executor.synchronize()

    def on_host(place: tuple[int, ...]) -> float:
        row, column = place if by_rows else place[::-1]
        part = slice(int(matrix.row_offsets[row]), int(matrix.row_offsets[row + 1]))
        indices, values = matrix.column_indices[part], matrix.values[part].astype(np.float64)
        return float(values @ (real["b"][indices, column] if by_rows else real["b"][column, indices]))

    _check(problem.result(matrix.nnz).shape, on_host, executor, into)
    adds = [int(p.epilogue.has_bias), int(p.epilogue.has_residual)]
    does = [int(p.epilogue is Epilogue.BIAS_RELU), int(p.epilogue is Epilogue.BIAS_GELU)]
    kinds: list[Buffer | int] = [p.m, p.n, *c_steps, *adds, *does, SIGNIFICAND_BITS[p.dtype]]
    executor.launch(set_bound, each, [*kinds, offsets, bias, residual, into.exact, into.bound])
    executor.synchronize()


def _sddmm(
    problem: SddmmProblem, matrix: CsrMatrix, real: Operands, executor: Executor, into: DeviceReference
) -> None:
    names = (("reference.cu", "sddmm_reference"), ("verdict.cu", "sddmm_bound"))
    multiply, set_bound = compiled_kernels(executor, *names)
    row_of = np.repeat(np.arange(problem.m, dtype=np.int32), np.diff(matrix.row_offsets))
    rows, columns, scale, a, b = (  # kept until the kernels have run
        executor.upload(empty_as_one(array))
        for array in (row_of, matrix.column_indices, matrix.values, real["a"], real["b"])
    )
    each = elementwise(matrix.nnz)
    factors: list[Buffer | int] = [matrix.nnz, problem.k, rows, columns, a, b]
    executor.launch(multiply, each, [*factors, into.exact, into.bound])
    executor.synchronize()

    def on_host(place: tuple[int, ...]) -> float:
        (i,) = place
        left = real["a"][row_of[i]].astype(np.float64)
        return float(left @ real["b"][matrix.column_indices[i]].astype(np.float64))

    _check((matrix.nnz,), on_host, executor, into)
    scales = int(problem.epilogue is SddmmEpilogue.SCALE)
    kinds: list[Buffer | int] = [matrix.nnz, problem.k, scales, SIGNIFICAND_BITS[problem.dtype], scale]
    executor.launch(set_bound, each, [*kinds, into.exact, into.bound])
    executor.synchronize()


def _check(
    shape: tuple[int, ...],
    on_host: Callable[[tuple[int, ...]], float],
    executor: Executor,
    found: DeviceReference,
) -> None:
    """Hold some elements of the bare product against float64 on the host."""
    exact, magnitude = download(found, shape, executor)
    rng = np.random.default_rng(1)
    for _ in range(CHECKED_ELEMENTS):
        place = tuple(int(rng.integers(size)) for size in shape)
        right = on_host(place)
        if not abs(float(exact[place]) - right) <= ROUNDING * (1.0 + float(magnitude[place])):
            raise SparsegenError(
                f"the device's float64 product is wrong: {float(exact[place])!r} at {place}, {right!r} on the "
                "host; nothing can be verified on this device"
            )


_REFERENCES: dict[type[Problem], Callable[[Any, CsrMatrix, Operands, Executor, DeviceReference], None]] = {
    SpmmProblem: _spmm,
    SddmmProblem: _sddmm,
}
