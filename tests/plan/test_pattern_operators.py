"""Prepared SDDMM and softmax on the emulator: right results, clear refusals, new values."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import sparsegen
from sparsegen.dispatch.chosen import How
from sparsegen.errors import ConfigError, NoVariantError, OperandError
from sparsegen.operators import DType
from sparsegen.verify.bounds import worst_error

pytestmark = pytest.mark.usefixtures("on_emulator")
M, N, K = 37, 52, 24


@pytest.fixture(scope="module")
def pattern() -> Any:
    found = scipy.sparse.random(M, N, 0.2, format="lil", random_state=3, dtype=np.float32)
    found[[0, 5, M - 1]] = 0
    return found.tocsr()


def dense(rows: int, dtype: str = "float32", seed: int = 0) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).standard_normal((rows, K))
    return values.astype(np.float16 if dtype == "float16" else np.float32)


def worst(op: Any, matrix: Any, result: Any, **operands: Any) -> float:
    specs = {spec.name: spec for spec in op.launcher.prepared.operands}
    stored = {name: specs[name].dtype.to_storage(array) for name, array in operands.items()}
    reference = op.problem.reference(sparsegen.as_csr(matrix), stored)
    return float(worst_error(reference, op.problem.dtype.to_storage(result)))


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("epilogue", ["none", "scale"])
def test_sddmm_is_right(pattern: Any, dtype: str, epilogue: str) -> None:
    op = sparsegen.prepare(pattern, operator="sddmm", k=K, dtype=dtype, epilogue=epilogue)
    assert isinstance(op, sparsegen.SddmmOperator) and op.choice.how is How.DEFAULT
    a, b = dense(M, dtype), dense(N, dtype, 1)
    d = op(a, b)
    assert d.shape == (pattern.nnz,) and d.dtype == a.dtype
    assert worst(op, pattern, d, a=a, b=b) <= 1
    out = np.full_like(d, np.nan)
    assert op(a, b, out) is out and np.array_equal(out, d)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("scale", [1.0, 0.125, -3.0])
def test_softmax_is_right(pattern: Any, dtype: str, scale: float) -> None:
    op = sparsegen.prepare(pattern, operator="sparse_softmax", dtype=dtype, scale=scale)
    assert isinstance(op, sparsegen.SoftmaxOperator)
    values = dense(pattern.nnz, dtype)[:, 0].copy()
    y = op(values)
    assert worst(op, pattern, y, x=values, scale=[scale]) <= 1
    assert op(values, values) is values and np.array_equal(values, y), "in place"


@pytest.mark.parametrize("dtype", DType)
def test_the_gradient_of_a_softmax_is_right(pattern: Any, dtype: str) -> None:
    op = sparsegen.prepare(pattern, operator="sparse_softmax_backward", dtype=dtype, scale=-0.5)
    assert isinstance(op, sparsegen.SoftmaxBackwardOperator)
    y, dy = dense(pattern.nnz, dtype)[:, 0].copy(), dense(pattern.nnz, dtype, 1)[:, 0].copy()
    dx = op(y, dy)
    assert worst(op, pattern, dx, y=y, dy=dy, scale=[-0.5]) <= 1
    assert op(y, dy, dy) is dy and np.array_equal(dy, dx), "in place"


def test_the_gradient_is_the_slope_of_the_softmax(pattern: Any) -> None:
    x, dy = dense(pattern.nnz)[:, 0].astype(np.float64), dense(pattern.nnz, seed=1)[:, 0].copy()
    forward = sparsegen.prepare(pattern, operator="sparse_softmax", scale=0.25)
    backward = sparsegen.prepare(pattern, operator="sparse_softmax_backward", scale=0.25)
    dx = backward(forward(x.astype(np.float32)), dy)

    csr = sparsegen.as_csr(pattern)

    def loss(values: Any) -> float:
        z = values * 0.25
        total = 0.0
        for begin, end in zip(csr.row_offsets[:-1], csr.row_offsets[1:], strict=True):
            powers = np.exp(z[begin:end])
            total += float(powers @ dy[begin:end] / powers.sum()) if begin < end else 0.0
        return total

    for i in range(0, pattern.nnz, 37):
        step = np.zeros_like(x)
        step[i] = 1e-4
        assert dx[i] == pytest.approx((loss(x + step) - loss(x - step)) / 2e-4, abs=2e-6)


def test_attention_out_of_three_operators(pattern: Any) -> None:
    """Scores at the pattern, their softmax, and its product with V: as dense attention with a mask."""
    q, keys, v = dense(M), dense(N, seed=1), dense(N, seed=2)
    scores = sparsegen.prepare(pattern, operator="sddmm", k=K)(q, keys)
    weights = sparsegen.prepare(pattern, operator="sparse_softmax", scale=K**-0.5)(scores)
    product = sparsegen.prepare(pattern, n=K)
    product.update_values(weights)
    mask = pattern.toarray() != 0
    exponents = np.where(mask, (q @ keys.T) * K**-0.5, -np.inf)
    powers = np.where(mask, np.exp(exponents - exponents.max(1, keepdims=True, initial=-1e9)), 0)
    expected = powers / np.maximum(powers.sum(1, keepdims=True), 1e-30) @ v
    np.testing.assert_allclose(product(v), expected, rtol=2e-4, atol=2e-5)


def test_patterns_without_nonzeros() -> None:
    for shape in ((0, 5), (5, 0), (4, 6)):
        empty = scipy.sparse.csr_array(shape, dtype=np.float32)
        for epilogue in ("none", "scale"):
            op = sparsegen.prepare(empty, operator="sddmm", k=3, epilogue=epilogue)
            assert op(np.ones((shape[0], 3), np.float32), np.ones((shape[1], 3), np.float32)).shape == (0,)
        op.update_values(np.zeros(0))
        softmax = sparsegen.prepare(empty, operator="sparse_softmax")
        assert softmax(np.zeros(0, np.float32)).shape == (0,)


def test_new_values_scale_the_result(pattern: Any) -> None:
    op = sparsegen.prepare(pattern, operator="sddmm", k=K, epilogue="scale")
    a, b = dense(M), dense(N, seed=1)
    new = np.random.default_rng(5).standard_normal(pattern.nnz).astype(np.float32)
    op.update_values(new)
    changed = sparsegen.as_csr(pattern).with_values(new)
    assert worst(op, changed, op(a, b), a=a, b=b) <= 1
    with pytest.raises(OperandError, match="pattern alone"):
        sparsegen.prepare(pattern, operator="sddmm", k=K).update_values(new)
    with pytest.raises(OperandError, match="pattern alone"):
        sparsegen.prepare(pattern, operator="sparse_softmax").update_values(new)


def test_threads_share_an_operator(pattern: Any) -> None:
    op = sparsegen.prepare(pattern, operator="sddmm", k=K)
    a, b = dense(M), dense(N, seed=1)
    expected, found = op(a, b), []
    threads = [threading.Thread(target=lambda: found.append(op(a, b))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(np.array_equal(one, expected) for one in found)


def test_wrong_operands_are_refused(pattern: Any) -> None:
    op = sparsegen.prepare(pattern, operator="sddmm", k=K)
    a, b = dense(M), dense(N)
    with pytest.raises(OperandError, match=rf"a: expected shape \({M}, {K}\), got \({N}, {K}\)"):
        op(b, b)
    with pytest.raises(OperandError, match="b: expected dtype float32, got float16"):
        op(a, dense(N, "float16"))
    with pytest.raises(OperandError, match=r"b: expected a numpy\.ndarray, got list"):
        op(a, [1.0])
    with pytest.raises(OperandError, match=r"b: expected an array of shape .*, got none"):
        op(a, None)
    with pytest.raises(OperandError, match=r"got builtins\.list"):
        op([1.0], b)
    with pytest.raises(OperandError, match="d: expected shape"):
        op(a, b, np.zeros((M, N), np.float32))
    softmax = sparsegen.prepare(pattern, operator="sparse_softmax")
    with pytest.raises(OperandError, match="x: expected shape"):
        softmax(np.zeros(pattern.nnz + 1, np.float32))


def test_wrong_options_are_refused(pattern: Any) -> None:
    prepare: Any = sparsegen.prepare
    for options, words in (
        ({"operator": "sddmm"}, "sddmm needs k"),
        ({"operator": "sddmm", "k": 4, "n": 4}, "sddmm takes no n"),
        ({"operator": "sddmm", "k": 4, "bias": [1.0]}, "sddmm takes no bias; spmm, quantized_spmm do"),
        (
            {"operator": "sddmm", "k": 4, "scale": 2.0},
            "sddmm takes no scale; block_attention, .* dsd, .* sparse_softmax, .* do",
        ),
        ({"operator": "sparse_softmax", "layout": "row"}, "sparse_softmax takes no layout"),
        ({"n": 4, "k": 4}, "spmm takes no k"),
        ({"operator": "gemm"}, "no operator 'gemm'"),
        ({"operator": "sddmm", "k": 4, "family": "csr_spmm"}, "csr_spmm computes spmm, not sddmm"),
        ({"operator": "sddmm", "k": 4, "dense": "always"}, "dense = always is for spmm"),
    ):
        with pytest.raises(ConfigError, match=words):
            prepare(pattern, **options)
    with pytest.raises(ConfigError, match=r"problem = 64 is no Problem; sizes are named, as in n=64$"):
        prepare(pattern, 64)  # type: ignore[arg-type]
    with pytest.raises(NoVariantError, match="nothing was measured for sddmm m=37 n=52 k=4 float32"):
        sparsegen.prepare(pattern, operator="sddmm", k=4, on_miss="error")


def test_a_named_variant(pattern: Any) -> None:
    op = sparsegen.prepare(
        pattern, operator="sddmm", k=K, family="csr_sddmm", config={"reduction": "transpose", "strip": 8}
    )
    a, b = dense(M), dense(N, seed=1)
    assert op.choice.how is How.NAMED and worst(op, pattern, op(a, b), a=a, b=b) <= 1
    with pytest.raises(ConfigError, match=r"batch .* divides strip"):
        sparsegen.prepare(pattern, operator="sddmm", k=K, family="csr_sddmm", config={"strip": 4, "batch": 8})
    assert "csr_sddmm (named)" in op.explain() and "__global__" in op.source
