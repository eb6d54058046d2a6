"""SDDMM's reference and cost, against a dense product."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SddmmEpilogue, SddmmProblem
from sparsegen.operators.sddmm import SPARSE, sampled_product
from sparsegen.verify.bounds import worst_error

M, N, K = 40, 70, 24


def inputs(density: float = 0.3, dtype: DType = DType.FLOAT32) -> tuple:  # type: ignore[type-arg]
    pattern = random_uniform(M, N, density, seed=1)
    operands = SddmmProblem(M, N, K, dtype).random_operands(np.random.default_rng(2), pattern.nnz)
    return pattern, operands


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("density", [0.3, 0.5 / SPARSE])  # multiplied whole, and gathered
def test_sampled_products(density: float, threads: int) -> None:
    pattern, operands = inputs(density)
    a, b = (operands[name].astype(np.float64) for name in "ab")
    exact, magnitude = sampled_product(pattern, a, b, threads=threads)
    at = pattern.to_scipy().nonzero() if pattern.values.all() else pytest.fail("a stored zero")
    np.testing.assert_allclose(exact, (a @ b.T)[at], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(magnitude, (abs(a) @ abs(b).T)[at], rtol=1e-12)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("epilogue", SddmmEpilogue)
def test_a_rounded_result_is_within_the_bound_and_a_wrong_one_is_not(
    dtype: DType, epilogue: SddmmEpilogue
) -> None:
    pattern, operands = inputs(dtype=dtype)
    problem = SddmmProblem(M, N, K, dtype, epilogue)
    reference = problem.reference(pattern, operands)
    assert worst_error(reference, dtype.to_storage(reference.exact)) <= 1
    assert worst_error(reference, dtype.to_storage(reference.exact * 1.05)) > 1
    assert worst_error(reference, dtype.to_storage(np.roll(reference.exact, 1))) > 1
    unscaled = SddmmProblem(M, N, K, dtype).reference(pattern, operands).exact
    values = dtype.from_storage(dtype.to_storage(pattern.values)).astype(np.float64)
    np.testing.assert_allclose(
        reference.exact, unscaled * values if epilogue is SddmmEpilogue.SCALE else unscaled
    )


def test_cost_counts_values_only_where_they_scale() -> None:
    plain = SddmmProblem(M, N, K, DType.FLOAT16).cost(20)
    scaled = SddmmProblem(M, N, K, DType.FLOAT16, SddmmEpilogue.SCALE).cost(20)
    assert plain.flop == scaled.flop == 2 * 20 * K
    assert plain.bytes == 2 * (M + N) * K + 4 * (M + 1) + 20 * (4 + 2)
    assert scaled.bytes == plain.bytes + 2 * 20


def test_a_dense_pattern_costs_a_bit_for_each_place() -> None:
    half = M * N // 2
    assert SddmmProblem(M, N, K, DType.FLOAT16).cost(half).bytes == 2 * (M + N) * K + M * N // 8 + 2 * half
