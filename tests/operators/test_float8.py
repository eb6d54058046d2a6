"""8-bit factors: their numbers, and bounds on what tensor cores make of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsegen.errors import ConfigError, OperandError
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DType,
    FactorType,
    Float8,
    Layout,
    SddProblem,
    TensorSpec,
)
from sparsegen.plan.arrays import encoded, numpy_type
from sparsegen.verify.bounds import worst_error

CODES = np.arange(256, dtype=np.uint8)
# Code, number: least, largest denormal, least normal, one, largest finite.
KNOWN = {
    Float8.E4M3: {1: 2.0**-9, 7: 7 * 2.0**-9, 8: 2.0**-6, 0x38: 1.0, 0x7E: 448.0},
    Float8.E5M2: {1: 2.0**-16, 3: 3 * 2.0**-16, 4: 2.0**-14, 0x3C: 1.0, 0x7B: 57344.0},
}
PROBLEM = DsdProblem(
    8,
    2048,
    16,
    DType.FLOAT32,
    Block(64, 128),
    Density(1.0),
    w_layout=Layout.COLUMN,
    factor_type=FactorType.E4M3,
)


@pytest.mark.parametrize("kind", Float8)
def test_codes_are_those_of_the_format(kind: Float8) -> None:
    found = kind.from_storage(CODES)
    for code, number in KNOWN[kind].items():
        assert found[code] == number and found[code | 0x80] == -number
    assert kind.largest == max(KNOWN[kind].values())
    assert np.isnan(found[0x7F]) and np.signbit(found[0x80]) and found[0x80] == 0
    assert np.isinf(found).sum() == (2 if kind is Float8.E5M2 else 0)


@pytest.mark.parametrize("kind", Float8)
def test_every_number_is_its_own_code(kind: Float8) -> None:
    numbers = kind.from_storage(CODES)
    is_number = ~np.isnan(numbers)
    np.testing.assert_array_equal(kind.to_storage(numbers)[is_number], CODES[is_number])


@pytest.mark.parametrize("kind", Float8)
def test_numbers_go_to_the_nearest_and_ties_to_even(kind: Float8) -> None:
    finite = np.unique(kind.from_storage(CODES)[np.isfinite(kind.from_storage(CODES))].astype(np.float64))
    middles = (finite[1:] + finite[:-1]) / 2
    for number, code in zip(middles, kind.to_storage(middles), strict=True):
        near = kind.from_storage(kind.to_storage(np.nextafter(number, [-np.inf, np.inf])))
        assert code % 2 == 0 and kind.from_storage(code) in near
        assert near[0] < number < near[1]


def test_too_large_numbers_are_counted() -> None:
    sizes = np.array([448.0, 464.0, 465.0, 57344.0, 61439.0, 61440.0, np.inf, np.nan])
    assert Float8.E4M3.overflows(sizes) == 4
    assert Float8.E5M2.overflows(sizes) == 1
    assert np.isnan(Float8.E4M3.from_storage(Float8.E4M3.to_storage(sizes[2:]))).all()
    assert np.isinf(Float8.E5M2.from_storage(Float8.E5M2.to_storage(sizes[5:7]))).all()
    with pytest.raises(OperandError, match="x: 1 of 1 finite values become infinite in float8_e4m3fn"):
        encoded(np.full(1, 500.0), TensorSpec("x", (1,), Float8.E4M3))
    assert numpy_type(Float8.E4M3) == np.float32


def test_pairs_are_in_the_order_of_the_call() -> None:
    assert FactorType.SAME.types is None
    assert FactorType.E4M3.types == (Float8.E4M3, Float8.E4M3)
    assert FactorType.E5M2_E4M3.types == (Float8.E5M2, Float8.E4M3)
    problem = SddProblem(64, 128, 256, DType.BFLOAT16, factor_type="e5m2-e4m3")  # type: ignore[arg-type]
    assert [spec.dtype for spec in problem.dense_operands()] == [Float8.E5M2, Float8.E4M3]
    assert problem.result(0).dtype is DType.BFLOAT16
    with pytest.raises(ConfigError, match="factor_type = 'e3m4' is none of same, e4m3, e5m2"):
        SddProblem(64, 128, 256, factor_type="e3m4")  # type: ignore[arg-type]


def test_a_problem_without_them_is_named_as_before() -> None:
    plain, narrow = (
        SddProblem(64, 128, 256, factor_type=kind) for kind in (FactorType.SAME, FactorType.E5M2)
    )
    assert "e5m2" in str(narrow) and "same" not in str(plain)
    assert narrow.cost(0).bytes < plain.cost(0).bytes and narrow.cost(0).flop == plain.cost(0).flop


def cut_sums(x: np.ndarray, w: np.ndarray, stage: int = 128, at_once: int = 32, bits: int = 13) -> np.ndarray:
    """Returns X · Wᵀ as tensor cores are reported to sum it: terms are cut to ``bits`` bits after the largest one's
    point.
    """
    total = np.zeros((x.shape[0], w.shape[0]))
    for first in range(0, x.shape[1], stage):
        part = np.zeros_like(total)
        for k in range(first, min(first + stage, x.shape[1]), at_once):
            terms = np.concatenate(
                (part[..., None], x[:, None, k : k + at_once] * w[None, :, k : k + at_once]), axis=2
            )
            unit = 2.0 ** (
                np.floor(np.log2(np.maximum(np.abs(terms).max(2, keepdims=True), 2.0**-99))) - bits
            )
            part = (np.trunc(terms / unit) * unit).sum(2)
        total = total + part
    return total.astype(np.float32)


@pytest.mark.parametrize("k", [128, 2048])
@pytest.mark.parametrize("kind", [FactorType.E4M3, FactorType.E5M2])
def test_the_bound_allows_cut_sums_and_no_missing_products(k: int, kind: FactorType) -> None:
    problem = replace(PROBLEM, k=k, factor_type=kind)
    given = problem.random_operands(np.random.default_rng(0), 0)
    reference = problem.reference(problem.without_pattern, given)
    assert kind.types is not None
    x, w = (
        of.from_storage(given[name]).astype(np.float64) for of, name in zip(kind.types, "xw", strict=True)
    )
    cut = cut_sums(x, w)
    exact_enough = worst_error(reference, cut)
    assert 0.001 < exact_enough < 0.6
    x[:, k // 2 : k // 2 + 32] = 0  # one product of the tensor cores is left out
    assert worst_error(reference, cut_sums(x, w)) > 3


def test_sums_of_one_sign_need_float32_behind_each_stage() -> None:
    """The truncation errors add up there: over a long contraction to far more than stage by stage."""
    problem = replace(PROBLEM, m=2, k=1 << 14)
    given = problem.random_operands(np.random.default_rng(0), 0)
    given["x"] &= 0x7F  # no signs: sums grow
    given["w"] &= 0x7F
    reference = problem.reference(problem.without_pattern, given)
    x, w = (Float8.E4M3.from_storage(given[name]).astype(np.float64) for name in "xw")
    stays, by_stages = (worst_error(reference, cut_sums(x, w, stage=stage)) for stage in (1 << 14, 128))
    assert by_stages * 50 < stays
