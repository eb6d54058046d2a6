"""Dense products of what products with masks multiply: what cuBLAS, which is column-major, is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.kernels.masked.side import Side
from sparsegen.matrix.block_mask import BlockMask
from sparsegen.measure.baselines import cublas
from sparsegen.operators import DsdProblem, DsdTransposedProblem, Layout, MaskedProblem, SddProblem
from sparsegen.system.numpy_types import Array

PROBLEMS: list[MaskedProblem] = [
    *(DsdProblem(5, 6, 7, w_layout=layout) for layout in Layout),
    *(DsdTransposedProblem(5, 6, 7, y_layout=layout) for layout in Layout),
    *(SddProblem(5, 6, 7, w_layout=layout) for layout in Layout),
]


def gemm(
    handle: Any,
    dtype: Any,
    operations: Any,
    shape: Any,
    left: Any,
    right: Any,
    result: Any,
    compute: Any,
    scale: float,
) -> None:
    """cublasGemmEx in its own terms: element (i, j) of a stored matrix lies at i + j times the leading dimension."""

    def factor(stored: tuple[Array, int], operation: int, rows: int, columns: int) -> Array:
        array, leading = stored
        is_transposed = operation == cublas.TRANSPOSE
        height, width = (columns, rows) if is_transposed else (rows, columns)
        found = np.lib.stride_tricks.as_strided(array, (height, width), (4, 4 * leading))
        return found.T if is_transposed else found

    m, n, k = shape
    product = factor(left, operations[0], m, k) @ factor(right, operations[1], k, n)
    array, leading = result
    np.lib.stride_tricks.as_strided(array, (m, n), (4, 4 * leading))[...] = scale * product


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_product_is_that_of_a_mask_without_dead_blocks(
    problem: MaskedProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublas, "product", gemm)
    operands = problem.random_operands(np.random.default_rng(0), 0)
    operands["mask"] = BlockMask.from_blocks(
        np.ones((1, 1), np.bool_), (128, 128), problem.matrix_shape
    ).words
    operands["scale"] = np.full(1, 1.5, np.float32)
    a, b = (operands[spec.name] for spec in problem.dense_operands())
    y = np.full(problem.result(0).shape, np.nan, np.float32)
    whole = cublas.ByColumns.of(Side.of(problem), a, b, y)  # type: ignore[arg-type]
    cublas.product_of(Any, problem.dtype, whole, scale=1.5)  # type: ignore[arg-type]
    exact = problem.reference(problem.without_pattern, operands).exact
    np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-5)
