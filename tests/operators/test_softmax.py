"""Sparse softmax's reference and bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract_cases import matrices

from sparsegen.operators import DType, Reference, SoftmaxProblem


def reference(x: Any, name: str, dtype: DType = DType.FLOAT32, scale: float = 1.0) -> Reference:
    pattern = matrices()[name]
    operands = {"x": dtype.to_storage(x), "scale": np.array([scale], np.float32)}
    return SoftmaxProblem(*pattern.shape, dtype).reference(pattern, operands)


@pytest.mark.parametrize("name", ["empty_rows", "huge_row", "every_row_length", "no_nonzeros", "no_rows"])
def test_rows_sum_to_one_and_agree_with_a_loop(name: str) -> None:
    pattern = matrices()[name]
    x = np.random.default_rng(0).standard_normal(pattern.nnz).astype(np.float32)
    exact = reference(x, name, scale=-2.0).exact
    for begin, end in zip(pattern.row_offsets[:-1], pattern.row_offsets[1:], strict=True):
        if begin < end:
            powers = np.exp(-2.0 * x[begin:end].astype(np.float64))
            np.testing.assert_allclose(exact[begin:end], powers / powers.sum(), rtol=1e-12)


def test_large_values_are_stable() -> None:
    nnz = matrices()["dense"].nnz
    found = reference(np.linspace(-3e4, 3e4, nnz), "dense", scale=100.0)
    assert np.isfinite(found.exact).all() and np.isfinite(found.bound).all()


@pytest.mark.parametrize("dtype", DType)
def test_a_rounded_result_is_within_the_bound_and_a_wrong_one_is_not(dtype: DType) -> None:
    nnz = matrices()["dense"].nnz
    found = reference(np.random.default_rng(0).standard_normal(nnz), "dense", dtype)
    assert found.worst_error(dtype.to_storage(found.exact)) <= 1
    assert found.worst_error(dtype.to_storage(found.exact * 1.05)) > 1
    assert found.worst_error(dtype.to_storage(np.full(nnz, np.nan))) == np.inf
