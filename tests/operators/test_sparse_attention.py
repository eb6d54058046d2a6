"""The reference of sparse attention and its bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.operators import DType, Reference, SparseAttentionProblem
from sparsegen.testing.matrices import matrices
from sparsegen.verify.bounds import worst_error

K = 24


def operands_of(problem: SparseAttentionProblem, scale: float = K**-0.5, seed: int = 0) -> dict[str, Any]:
    operands = problem.random_operands(np.random.default_rng(seed), 0)
    return operands | {"scale": np.array([scale], np.float32)}


def row_by_row(problem: SparseAttentionProblem, pattern: Any, operands: dict[str, Any]) -> Any:
    """The same by a loop over queries, in float64 of the stored operands."""
    rows = {"q": problem.m, "k": problem.n, "v": problem.n}
    q, k, v = (
        problem.dtype.from_storage(operands[name]).astype(np.float64).reshape(problem.batch, count, problem.k)
        for name, count in rows.items()
    )
    out = np.zeros((problem.batch, problem.m, problem.k))
    for head in range(problem.batch):
        for i in range(problem.m):
            seen = pattern.column_indices[pattern.row_offsets[i] : pattern.row_offsets[i + 1]]
            if seen.size:
                powers = np.exp(float(operands["scale"][0]) * (k[head, seen] @ q[head, i]))
                out[head, i] = powers @ v[head, seen] / powers.sum()
    return out


@pytest.mark.parametrize(
    "name",
    ["odd_shape", "empty_rows", "huge_row", "every_row_length", "no_nonzeros", "no_rows", "no_columns"],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_it_agrees_with_a_loop(name: str, batch: int) -> None:
    pattern = matrices()[name]
    problem = SparseAttentionProblem(*pattern.shape, K, batch=batch)
    operands = operands_of(problem, scale=-0.3)
    found = problem.reference(pattern, operands, threads=2)
    assert found.exact.shape == found.magnitude.shape == problem.result(pattern.nnz).shape
    right = row_by_row(problem, pattern, operands).reshape(found.exact.shape)
    np.testing.assert_allclose(found.exact, right, rtol=1e-10, atol=1e-12)


def found_for(dtype: DType, scale: float) -> Reference:
    pattern = matrices()["dense"]
    problem = SparseAttentionProblem(*pattern.shape, K, dtype)
    return problem.reference(pattern, operands_of(problem, scale))


@pytest.mark.parametrize("dtype", DType)
def test_a_rounded_result_is_within_the_bound_and_a_wrong_one_is_not(dtype: DType) -> None:
    found = found_for(dtype, K**-0.5)
    assert worst_error(found, dtype.to_storage(found.exact)) <= 1
    assert worst_error(found, dtype.to_storage(found.exact * 1.1)) > 1
    assert worst_error(found, dtype.to_storage(np.full(found.exact.shape, np.nan))) == np.inf


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_weights_that_are_rounded_before_the_second_product_are_within_the_bound(dtype: DType) -> None:
    pattern = matrices()["dense"]
    problem = SparseAttentionProblem(*pattern.shape, K, dtype)
    operands = operands_of(problem)
    q, k, v = (dtype.from_storage(operands[name]).astype(np.float64) for name in "qkv")
    z = q @ k.T * float(operands["scale"][0])
    powers = np.exp(z - z.max(axis=1, keepdims=True))
    rounded = dtype.from_storage(dtype.to_storage(powers)).astype(np.float64)
    out = rounded @ v / powers.sum(axis=1, keepdims=True)
    found = problem.reference(pattern, operands)
    assert 0.1 < worst_error(found, dtype.to_storage(out)) <= 1


def test_large_scores_are_stable() -> None:
    found = found_for(DType.FLOAT16, 1e4)
    assert np.isfinite(found.exact).all() and np.isfinite(found.magnitude).all()


def test_cost_counts_two_products_of_every_head() -> None:
    one, many = (
        SparseAttentionProblem(8, 9, 16, DType.FLOAT16),
        SparseAttentionProblem(8, 9, 16, DType.FLOAT16, 5),
    )
    assert one.cost(20).flop == 4 * 20 * 16 and many.cost(20).flop == 5 * one.cost(20).flop
    assert many.cost(20).bytes - one.cost(20).bytes == 4 * (8 + 9) * 2 * 16 * 2
