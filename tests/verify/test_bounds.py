"""Bounds tell right from wrong; ours are, operator by operator, those that results were always held against."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    Problem,
    Reference,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.operators.base.reference import terms_stride
from sparsegen.system.numpy_types import Array
from sparsegen.verify import bounds
from sparsegen.verify.bounds import ErrorBound, explain, worst_error

MATRIX = random_rows(24, 40, 0.3, 0.6, 3)
LENGTHS = np.diff(MATRIX.row_offsets)
FLOAT_ROUNDING = 2.0**-24


def smallest(dtype: DType) -> float:
    return 2.0**-24 if dtype is DType.FLOAT16 else 2.0**-126


def of_split(dtype: DType, magnitude: Array, terms: Any) -> Array:
    """Loss of float32 factors as two TF32 numbers."""
    lost: Array = 4 * magnitude / np.sqrt(terms + 2.0) * (2.0**-23 if dtype is DType.FLOAT32 else 0)
    return lost


def of_sums(dtype: DType, exact: Array, magnitude: Array, terms: Any) -> Array:
    bound: Array = FLOAT_ROUNDING * 4 * np.sqrt(terms + 2.0) * magnitude
    return bound + 2 * dtype.unit_roundoff * np.abs(exact) + smallest(dtype)


def real(problem: Problem, operands: dict[str, Array]) -> dict[str, Array]:
    return {name: problem.dtype.from_storage(a).astype(np.float64) for name, a in operands.items()}


def bound_of_spmm(p: SpmmProblem, a: Array, given: dict[str, Array], exact: Array) -> Array:
    by_rows = p.layout is Layout.ROW
    magnitude = np.abs(a) @ np.abs(given["b"] if by_rows else given["b"].T)
    if "bias" in given:
        magnitude += np.abs(given["bias"])[:, None]
    if "residual" in given:
        magnitude += np.abs(given["residual"] if by_rows else given["residual"].T)
    if p.epilogue is Epilogue.BIAS_GELU:
        magnitude *= 1.5
    magnitude = magnitude if by_rows else magnitude.T
    return of_sums(p.dtype, exact, magnitude, LENGTHS[:, None] if by_rows else LENGTHS[None, :])


def bound_of_sddmm(p: SddmmProblem, a: Array, given: dict[str, Array], exact: Array) -> Array:
    rows, columns = a.nonzero()
    magnitude = (np.abs(given["a"]) @ np.abs(given["b"]).T)[rows, columns]
    if p.epilogue is SddmmEpilogue.SCALE:
        magnitude = magnitude * np.abs(a[rows, columns])
    return of_sums(p.dtype, exact, magnitude, p.k)


def bound_of_softmax(p: SoftmaxProblem, a: Array, given: dict[str, Array], exact: Array) -> Array:
    starts = MATRIX.row_offsets[:-1]
    z = given["x"] * SCALE
    below = np.repeat(np.maximum.reduceat(z, starts), LENGTHS) - z
    of_sum = np.repeat(np.add.reduceat(exact * below, starts), LENGTHS)
    roundings = 16 + 16 * (below + of_sum) + 4 * np.sqrt(np.repeat(LENGTHS, LENGTHS))
    found: Array = exact * (FLOAT_ROUNDING * roundings + 2 * p.dtype.unit_roundoff) + smallest(p.dtype)
    return found


def bound_of_gradient(p: SoftmaxBackwardProblem, a: Array, given: dict[str, Array], exact: Array) -> Array:
    sums = np.repeat(np.add.reduceat(np.abs(given["y"] * given["dy"]), MATRIX.row_offsets[:-1]), LENGTHS)
    magnitude = np.abs(SCALE * given["y"]) * (np.abs(given["dy"]) + sums)
    return of_sums(p.dtype, exact, magnitude, np.repeat(LENGTHS, LENGTHS) + 2)


def bound_of_attention(p: SparseAttentionProblem, a: Array, given: dict[str, Array], exact: Array) -> Array:
    seen, lengths = a != 0, LENGTHS[:, None]
    z = np.where(seen, given["q"] @ given["k"].T * SCALE, -np.inf)
    weights = np.exp(z - z.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    longest = np.where(seen, np.linalg.norm(given["k"], axis=1), 0).max(axis=1, keepdims=True)
    of_scores = 4 * np.sqrt(p.k + 2) * SCALE * np.linalg.norm(given["q"], axis=1, keepdims=True) * longest
    roundings = 16 + 16 * np.abs(np.where(seen, z, 0)).max(axis=1, keepdims=True)
    of_weights = FLOAT_ROUNDING * (of_scores + roundings + 4 * np.sqrt(lengths + 2))
    size = np.abs(given["v"])
    error = (2 * of_weights + p.dtype.unit_roundoff) * (weights @ size)
    error += 2 * p.dtype.unit_roundoff * np.abs(exact) + smallest(p.dtype)
    if p.dtype is DType.FLOAT16:
        error += 2.0**-25 * (seen @ size)
    found: Array = error
    return found


SCALE = 0.25
OLD: dict[type[Problem], Callable[[Any, Array, dict[str, Array], Array], Array]] = {
    SpmmProblem: bound_of_spmm,
    SddmmProblem: bound_of_sddmm,
    SoftmaxProblem: bound_of_softmax,
    SoftmaxBackwardProblem: bound_of_gradient,
    SparseAttentionProblem: bound_of_attention,
}
PROBLEMS: list[Problem] = [
    *(
        SpmmProblem(24, 40, 9, dtype, layout, epilogue)
        for dtype in DType
        for layout in Layout
        for epilogue in Epilogue
    ),
    *(SddmmProblem(24, 40, 13, dtype, epilogue) for dtype in DType for epilogue in SddmmEpilogue),
    *(SoftmaxProblem(24, 40, dtype) for dtype in DType),
    *(SoftmaxBackwardProblem(24, 40, dtype) for dtype in DType),
    *(SparseAttentionProblem(24, 40, 8, dtype) for dtype in DType),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_bounds_are_the_old_ones(problem: Problem) -> None:
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    if "scale" in operands:
        operands["scale"][:] = SCALE
    reference = problem.reference(MATRIX, operands)
    a = MATRIX.with_values(problem.dtype.rounded(MATRIX.values).astype(np.float64)).to_scipy().toarray()
    given = real(problem, {name: array for name, array in operands.items() if name != "scale"})
    old = OLD[type(problem)](problem, a, given, reference.exact)
    old += of_split(problem.dtype, reference.magnitude, reference.terms)
    now = ErrorBound.ours(problem.dtype).of(reference.exact, reference.magnitude, reference.terms)
    np.testing.assert_allclose(now, old, rtol=1e-12)


@pytest.mark.parametrize("dtype", DType)
def test_bounds_for_others_are_the_old_ones(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    exact, magnitude, terms = rng.standard_normal((7, 5)), rng.random((7, 5)), rng.integers(1, 99, (7, 1))
    typical = 4.0 * magnitude / np.sqrt(terms + 2.0)
    ours = of_sums(dtype, exact, magnitude, terms) + of_split(dtype, magnitude, terms)
    vendors = ours + (0 if dtype is DType.FLOAT32 else 2 * dtype.unit_roundoff * typical)
    for bound, old in ((ErrorBound.ours(dtype), ours), (ErrorBound.vendors(dtype), vendors)):
        np.testing.assert_allclose(bound.of(exact, magnitude, terms), old, rtol=1e-14)
    tf32 = of_sums(DType.FLOAT32, exact, magnitude, terms) + 2.0**-10 * (typical + 2 * np.abs(exact))
    np.testing.assert_allclose(ErrorBound.tf32().of(exact, magnitude, terms), tf32, rtol=1e-14)


def spmm_reference(layout: Layout = Layout.ROW) -> Reference:
    problem = SpmmProblem(24, 40, 9, layout=layout)
    return problem.reference(MATRIX, problem.random_operands(np.random.default_rng(0), MATRIX.nnz))


@pytest.mark.parametrize("layout", Layout)
def test_one_wrong_element_is_enough(layout: Layout) -> None:
    reference = spmm_reference(layout)
    right = reference.exact.astype(np.float32)
    assert worst_error(reference, right) <= 1
    for bad in (np.nan, right[3, 4] + 0.01):
        wrong = right.copy()
        wrong[3, 4] = bad
        assert not worst_error(reference, wrong) <= 1
        assert explain(reference, wrong, "c").startswith("1 of 216 values are wrong; the worst is c[3, 4] = ")
    assert worst_error(reference, right[:, :-1]) == np.inf, "another shape"
    assert worst_error(reference, np.full_like(right, np.nan)) == np.inf


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("times", [0.0, 2.0, 5.0])
def test_an_error_is_told_in_bounds(times: float, layout: Layout, dtype: DType) -> None:
    """The bound is computed here; the stored result is rounded, so that the error is taken of that."""
    problem = SpmmProblem(24, 40, 9, dtype, layout)
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    reference = problem.reference(MATRIX, operands)
    a = MATRIX.with_values(dtype.rounded(MATRIX.values).astype(np.float64)).to_scipy().toarray()
    bound = bound_of_spmm(problem, a, real(problem, operands), reference.exact)
    bound += of_split(dtype, reference.magnitude, reference.terms)
    result = reference.exact.copy()
    result[3, 4] += times * bound[3, 4]
    stored = dtype.to_storage(result)
    errors = np.abs(dtype.from_storage(stored) - reference.exact) / bound
    assert worst_error(reference, stored) == pytest.approx(errors.max())
    assert (errors.max() > 1) == (times > 1)


@pytest.mark.parametrize("layout", Layout)
def test_strips_see_every_element(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = spmm_reference(layout)
    right = reference.exact.astype(np.float32)
    whole = worst_error(reference, right)
    monkeypatch.setattr(bounds, "CHUNK", 10)
    assert worst_error(reference, right) == whole
    for place in range(right.size):
        wrong = right.copy()
        wrong.reshape(-1)[place] += 0.1
        assert worst_error(reference, wrong) > 1, place


@pytest.mark.parametrize("place", [(0, 0), (23, 8)])
def test_the_worst_value_is_told_with_what_it_should_be(place: tuple[int, int]) -> None:
    reference = spmm_reference()
    wrong = reference.exact.astype(np.float32)
    wrong[place] = reference.exact[place] + 0.5
    bound = ErrorBound.ours(DType.FLOAT32).of(reference.exact, reference.magnitude, reference.terms)
    told = explain(reference, wrong, "c")
    assert told.endswith(
        f"c[{place[0]}, {place[1]}] = {wrong[place]:.6g}, "
        f"which should be {reference.exact[place]:.6g} ± {bound[place]:.2g}"
    )


@pytest.mark.parametrize("dtype", DType)
def test_infinity_is_right_only_where_float16_overflows(dtype: DType) -> None:
    """bfloat16 and float32 hold 70000, and float16 holds 60000."""
    for exact, is_right in ((7e4, dtype is DType.FLOAT16), (-7e4, dtype is DType.FLOAT16), (6e4, False)):
        reference = Reference(np.array([exact]), np.array([abs(exact)]), np.ones(1), dtype)
        stored = dtype.to_storage(np.array([math.copysign(np.inf, exact)]))
        assert worst_error(reference, stored) == (0.0 if is_right else np.inf)


def test_the_terms_of_a_result_without_an_array_of_its_size() -> None:
    for shape, terms in (
        ((4, 3), (4, 1)),
        ((4, 3), (1, 3)),
        ((2, 4, 3), (4, 1)),
        ((2, 4, 3), (1, 3)),
        ((2, 5), (5,)),
        ((5,), (1,)),
        ((4, 3), (1, 1)),
        ((1, 3), (1, 1)),
        ((0, 3), (0, 1)),
    ):
        numbers = np.arange(np.prod(terms, dtype=int)).reshape(terms)
        places = np.arange(np.prod(shape, dtype=int))
        found = numbers.reshape(-1)[places // terms_stride(shape, terms) % max(1, numbers.size)]
        np.testing.assert_array_equal(found, np.broadcast_to(numbers, shape).reshape(-1), f"{shape} {terms}")


def test_tf32_may_cut_its_factors_and_nothing_else() -> None:
    problem = SpmmProblem(24, 40, 9)
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    reference = problem.reference(MATRIX, operands)

    def cut(values: Array) -> Array:
        return (np.ascontiguousarray(values).view(np.uint32) & 0xFFFFE000).view(np.float32)

    result = (MATRIX.with_values(cut(MATRIX.values)).to_scipy() @ cut(operands["b"])).astype(np.float32)
    assert worst_error(reference, result, ErrorBound.tf32()) <= 1 < worst_error(reference, result)
    result[0, 0] *= 1.02
    assert worst_error(reference, result, ErrorBound.tf32()) > 1


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_vendors_may_round_partial_sums_and_nothing_else(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    dense = CsrMatrix((8, 64), np.arange(0, 513, 64), np.tile(np.arange(64), 8), rng.standard_normal(512))
    problem = SpmmProblem(8, 64, 9, dtype)
    operands = problem.random_operands(rng, dense.nnz)
    reference = problem.reference(dense, operands)
    a = dtype.rounded(dense.values).reshape(8, 64)
    b = dtype.from_storage(operands["b"]).astype(np.float32)
    parts = [dtype.rounded(a[:, half] @ b[half]) for half in (slice(0, 32), slice(32, 64))]
    stored = dtype.to_storage(parts[0] + parts[1])
    vendors = ErrorBound.vendors(dtype)
    assert worst_error(reference, stored, vendors) <= 1 < worst_error(reference, stored)
    wrong = dtype.to_storage(dtype.from_storage(stored) + np.float32(0.5))
    assert worst_error(reference, wrong, vendors) > 1


def test_where_the_exact_result_is_nan_the_output_is_left_as_it_was() -> None:
    """Outputs are filled with NaN before; a number there was written and should not have been."""
    exact = np.array([1.0, np.nan])
    reference = Reference(exact, np.ones(2), np.ones(1), DType.FLOAT32)
    assert worst_error(reference, np.array([1.0, np.nan], np.float32)) <= 1
    assert worst_error(reference, np.array([1.0, 0.0], np.float32)) == np.inf
    assert worst_error(reference, np.array([np.nan, np.nan], np.float32)) == np.inf
