"""Softmax, its gradient and attention in float64: a warp for each row; some rows are computed again on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.backends.plain import compiled_kernels
from sparsegen.kernels.base import Array
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem, SoftmaxBackwardProblem, SoftmaxProblem, SparseAttentionProblem
from sparsegen.verify.device_references.common import (
    SIGNIFICAND_BITS,
    DeviceReference,
    Operands,
    require_equal,
)

FILE = "rows.cu"
WARP = 32
CHECKED_ROWS = 4
ROUNDING = 1e-9  # of the device's float64, relative to the row's largest result: functions differ in their last places


def softmax(
    problem: SoftmaxProblem, matrix: CsrMatrix, real: Operands, executor: Executor, into: DeviceReference
) -> None:
    _run("softmax_reference", (), ("x", "scale"), problem, matrix, real, executor, into)
    _check(problem, matrix, real, executor, into, lambda row, own: {"x": real["x"][own]})


def softmax_backward(
    problem: SoftmaxBackwardProblem,
    matrix: CsrMatrix,
    real: Operands,
    executor: Executor,
    into: DeviceReference,
) -> None:
    _run("softmax_backward_reference", (), ("y", "dy", "scale"), problem, matrix, real, executor, into)
    _check(
        problem,
        matrix,
        real,
        executor,
        into,
        lambda row, own: {name: real[name][own] for name in ("y", "dy")},
    )


def attention(
    problem: SparseAttentionProblem,
    matrix: CsrMatrix,
    real: Operands,
    executor: Executor,
    into: DeviceReference,
) -> None:
    columns = executor.upload(empty_as_one(matrix.column_indices))
    weights = executor.allocate(max(1, matrix.nnz) * 8)
    extra = {"columns": columns, "weights": weights}
    names = ("columns", "q", "k", "v", "scale", "weights")
    _run("attention_reference", (problem.k,), names, problem, matrix, real, executor, into, extra)

    def operands_of(row: int, own: slice) -> dict[str, Array]:
        seen = matrix.column_indices[own]
        return {"q": real["q"][row : row + 1], "k": real["k"][seen], "v": real["v"][seen]}

    _check(problem, matrix, real, executor, into, operands_of)


def _run(
    entry: str,
    sizes: tuple[int, ...],
    names: tuple[str, ...],
    problem: Problem,
    matrix: CsrMatrix,
    real: Operands,
    executor: Executor,
    into: DeviceReference,
    extra: dict[str, Buffer] | None = None,
) -> None:
    """Launch a kernel whose arguments are sizes, bits, row offsets, the named arrays, and the reference."""
    (kernel,) = compiled_kernels(executor, (FILE, entry))
    offsets = executor.upload(matrix.row_offsets)
    arrays = dict(extra or {})
    arrays |= {name: executor.upload(empty_as_one(real[name])) for name in names if name not in arrays}
    arguments: list[Buffer | int] = [*sizes, SIGNIFICAND_BITS[problem.dtype], offsets]
    arguments += [*(arrays[name] for name in names), into.exact, into.bound]
    executor.launch(kernel, Launch((matrix.shape[0], 1, 1), (WARP, 1, 1)), arguments)
    executor.synchronize()  # the arrays are kept until here


def _check(
    problem: Problem,
    matrix: CsrMatrix,
    real: Operands,
    executor: Executor,
    found: DeviceReference,
    operands_of: Callable[[int, slice], dict[str, Array]],
) -> None:
    """Hold some rows against the host's reference, each as a problem of its own with the columns that it has.

    Args:
        operands_of: the operands of a row and of its nonzeros, but for the scale.
    """
    result = problem.result(matrix.nnz)
    wide = int(np.prod(result.shape[1:], dtype=np.int64)) if len(result.shape) > 1 else 0  # 0: by nonzeros
    filled = np.flatnonzero(np.diff(matrix.row_offsets))
    for row in np.random.default_rng(1).permutation(filled)[:CHECKED_ROWS].tolist():
        own = slice(int(matrix.row_offsets[row]), int(matrix.row_offsets[row + 1]))
        length = own.stop - own.start
        one = CsrMatrix((1, length), np.array([0, length]), np.arange(length), matrix.values[own])
        stored = {name: problem.dtype.to_storage(array) for name, array in operands_of(row, own).items()}
        alone = replace(problem, m=1, n=length)  # type: ignore[type-var]
        right = alone.reference(one, stored | {"scale": real["scale"]}).exact
        start, count = (row * wide, wide) if wide else (own.start, length)
        exact, _ = found.part(start, count).download(right.shape, executor)
        close = np.abs(exact - right) <= ROUNDING * (1e-30 + np.abs(right).max())
        require_equal(bool(close.all()), exact.ravel()[:4].tolist(), right.ravel()[:4].tolist(), f"row {row}")
