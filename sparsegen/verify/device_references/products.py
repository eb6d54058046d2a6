"""Sparse and sampled products in float64: one thread for each element; a sample is computed again on the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.backends.plain import compiled_kernels, elementwise
from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Epilogue, Layout, SddmmEpilogue, SddmmProblem, SpmmProblem
from sparsegen.verify.device_references.common import (
    SIGNIFICAND_BITS,
    DeviceReference,
    Operands,
    require_equal,
    values_in,
)

CHECKED_ELEMENTS = 64  # of the device's product, held against the host's
ROUNDING = 1e-12  # of sums in float64, relative to the sum of absolute values


def spmm(
    problem: SpmmProblem, matrix: CsrMatrix, real: Operands, executor: Executor, into: DeviceReference
) -> None:
    names = (("reference.cu", "spmm_reference"), ("verdict.cu", "spmm_bound"))
    multiply, set_bound = compiled_kernels(executor, *names)
    held_values = values_in(problem.dtype, matrix)
    offsets, columns, held, b, bias, residual = (  # kept until the kernels have run
        executor.upload(empty_as_one(array))
        for array in (
            matrix.row_offsets,
            matrix.column_indices,
            held_values,
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
        indices, values = matrix.column_indices[part], held_values[part].astype(np.float64)
        return float(values @ (real["b"][indices, column] if by_rows else real["b"][column, indices]))

    _check(problem.result(matrix.nnz).shape, on_host, executor, into)
    adds = [int(p.epilogue.has_bias), int(p.epilogue.has_residual)]
    does = [int(p.epilogue is Epilogue.BIAS_RELU), int(p.epilogue is Epilogue.BIAS_GELU)]
    kinds: list[Buffer | int] = [p.m, p.n, *c_steps, *adds, *does, SIGNIFICAND_BITS[p.dtype]]
    executor.launch(set_bound, each, [*kinds, offsets, bias, residual, into.exact, into.bound])
    executor.synchronize()


def sddmm(
    problem: SddmmProblem, matrix: CsrMatrix, real: Operands, executor: Executor, into: DeviceReference
) -> None:
    names = (("reference.cu", "sddmm_reference"), ("verdict.cu", "sddmm_bound"))
    multiply, set_bound = compiled_kernels(executor, *names)
    row_of = np.repeat(np.arange(problem.m, dtype=np.int32), np.diff(matrix.row_offsets))
    rows, columns, scale, a, b = (  # kept until the kernels have run
        executor.upload(empty_as_one(array))
        for array in (row_of, matrix.column_indices, values_in(problem.dtype, matrix), real["a"], real["b"])
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
    rng = np.random.default_rng(1)
    for _ in range(CHECKED_ELEMENTS):
        place = tuple(int(rng.integers(size)) for size in shape)
        exact, magnitude = found.part(int(np.ravel_multi_index(place, shape)), 1).download((1,), executor)
        right = on_host(place)
        close = abs(float(exact[0]) - right) <= ROUNDING * (1.0 + float(magnitude[0]))
        require_equal(close, float(exact[0]), right, place)
