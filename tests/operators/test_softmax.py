"""References and bounds of sparse softmax and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.operators import DType, Reference, SoftmaxBackwardProblem, SoftmaxProblem
from sparsegen.testing.matrices import matrices
from sparsegen.verify.bounds import worst_error


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
    assert np.isfinite(found.exact).all() and np.isfinite(found.magnitude).all()


@pytest.mark.parametrize("dtype", DType)
def test_a_rounded_result_is_within_the_bound_and_a_wrong_one_is_not(dtype: DType) -> None:
    nnz = matrices()["dense"].nnz
    found = reference(np.random.default_rng(0).standard_normal(nnz), "dense", dtype)
    assert worst_error(found, dtype.to_storage(found.exact)) <= 1
    assert worst_error(found, dtype.to_storage(found.exact * 1.05)) > 1
    assert worst_error(found, dtype.to_storage(np.full(nnz, np.nan))) == np.inf


@pytest.mark.parametrize("name", ["empty_rows", "huge_row", "every_row_length", "no_nonzeros", "no_rows"])
@pytest.mark.parametrize("dtype", DType)
def test_the_gradient_is_the_jacobian_times_a_vector(name: str, dtype: DType) -> None:
    pattern, rng = matrices()[name], np.random.default_rng(0)
    stored = {n: dtype.to_storage(rng.standard_normal(pattern.nnz)) for n in ("y", "dy")}
    operands = stored | {"scale": np.array([-2.0], np.float32)}
    found = SoftmaxBackwardProblem(*pattern.shape, dtype).reference(pattern, operands)
    y, dy = (dtype.from_storage(stored[n]).astype(np.float64) for n in ("y", "dy"))
    for begin, end in zip(pattern.row_offsets[:-1], pattern.row_offsets[1:], strict=True):
        row = y[begin:end]
        jacobian = -2.0 * (np.diag(row) - np.outer(row, row))
        np.testing.assert_allclose(found.exact[begin:end], jacobian @ dy[begin:end], rtol=1e-10, atol=1e-12)
    assert worst_error(found, dtype.to_storage(found.exact)) <= 1
    if pattern.nnz:
        assert worst_error(found, dtype.to_storage(found.exact * 1.05 + 0.05)) > 1
