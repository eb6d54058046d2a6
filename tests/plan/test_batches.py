"""Batches in the emulator: one launch computes every item as if it were alone; what does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import sparsegen
from sparsegen import backends
from sparsegen.backends.emulator import device
from sparsegen.dispatch.named import named_choice
from sparsegen.errors import ConfigError, OperandError
from sparsegen.kernels import families
from sparsegen.matrix.features import Features
from sparsegen.operators import OPERATORS, DType, Layout, Problem
from sparsegen.plan.binding import bind_variant
from sparsegen.plan.executors import shared_executor
from sparsegen.verify import bounds
from sparsegen.verify.variants import worst_error

pytestmark = pytest.mark.usefixtures("on_emulator")
M, N, K, BATCH = 37, 52, 24, 3
BATCHED = (
    "csr_sddmm",
    "csr_spmm",
    "mma_sddmm",
    "mma_spmm",
    "panel_sddmm",
    "panel_spmm",
    "row_softmax",
    "row_softmax_backward",
)


@pytest.fixture(scope="module")
def pattern() -> Any:
    found = scipy.sparse.random(M, N, 0.2, format="lil", random_state=3, dtype=np.float32)
    found[[0, 5, M - 1]] = 0
    return found.tocsr()


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_products_with_the_same_weights(pattern: Any) -> None:
    options: dict[str, Any] = {"n": 8, "epilogue": "bias_residual", "bias": normal(M)}
    op = sparsegen.prepare(pattern, batch=BATCH, **options)
    one = sparsegen.prepare(pattern, **options)
    assert isinstance(op, sparsegen.SparseOperator)
    b, residual = normal(BATCH, N, 8), normal(BATCH, M, 8, seed=1)
    for values in (pattern.data, normal(pattern.nnz, seed=2)):
        op.update_values(values)
        one.update_values(values)
        c = op(b, residual=residual)
        assert c.shape == (BATCH, M, 8)
        for i in range(BATCH):
            np.testing.assert_allclose(c[i], one(b[i], residual=residual[i]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transpose", [False, True])
def test_products_with_weights_of_their_own(pattern: Any, transpose: bool, tmp_path: Path) -> None:
    op = sparsegen.prepare(pattern, n=8, batch=BATCH, item_values="own", transpose=transpose)
    assert isinstance(op, sparsegen.SparseOperator)
    dense = pattern.toarray().T if transpose else pattern.toarray()
    b = normal(BATCH, dense.shape[1], 8)
    np.testing.assert_allclose(op(b), dense @ b, rtol=1e-5, atol=1e-5, err_msg="the matrix's values at first")
    values = normal(BATCH, pattern.nnz, seed=4)
    op.update_values(values)
    own = [scipy.sparse.csr_array((row, pattern.indices, pattern.indptr), pattern.shape) for row in values]
    right = np.stack([(a.T if transpose else a) @ x for a, x in zip(own, b, strict=True)])
    np.testing.assert_allclose(op(b), right, rtol=1e-5, atol=1e-5)
    sparsegen.save_operator(op, tmp_path / "op.npz")
    loaded = sparsegen.load_operator(tmp_path / "op.npz", device="emulator")
    assert loaded.problem == op.problem and np.array_equal(loaded(b), op(b))
    if not transpose:
        loaded.update_values(values[::-1])
        op.update_values(values[::-1].copy())
        assert np.array_equal(loaded(b), op(b))


@pytest.mark.parametrize("dtype", DType)
def test_attention_out_of_three_launches(pattern: Any, dtype: DType) -> None:
    options: dict[str, Any] = {"dtype": dtype, "batch": BATCH}
    scores = sparsegen.prepare(pattern, operator="sddmm", k=K, **options)
    softmax = sparsegen.prepare(pattern, operator="sparse_softmax", scale=0.3, **options)
    backward = sparsegen.prepare(pattern, operator="sparse_softmax_backward", scale=0.3, **options)
    kind = np.float16 if dtype is DType.FLOAT16 else np.float32
    q, k, dy = (
        a.astype(kind) for a in (normal(BATCH, M, K), normal(BATCH, N, K), normal(BATCH, pattern.nnz))
    )
    x = scores(q, k)
    y = softmax(x)
    dx = backward(y, dy)
    assert x.shape == y.shape == dx.shape == (BATCH, pattern.nnz)
    for op, result, operands in (
        (scores, x, {"a": q, "b": k}),
        (softmax, y, {"x": x, "scale": np.float32([0.3])}),
        (backward, dx, {"y": y, "dy": dy, "scale": np.float32([0.3])}),
    ):
        specs = {spec.name: spec.dtype for spec in op.launcher.prepared.operands}
        stored = {name: specs[name].to_storage(array) for name, array in operands.items()}
        reference = op.problem.reference(sparsegen.as_csr(pattern), stored)
        assert bounds.worst_error(reference, dtype.to_storage(result)) <= 1
    in_place = x.copy()
    assert np.array_equal(softmax(in_place, in_place), y)


def test_what_does_not_fit_is_refused(pattern: Any) -> None:
    nnz = pattern.nnz
    softmax = sparsegen.prepare(pattern, operator="sparse_softmax", batch=2)
    for given, words in (
        (normal(nnz), rf"x: expected shape \(2, {nnz}\), got \({nnz},\)"),
        (normal(3, nnz), rf"x: expected shape \(2, {nnz}\), got \(3, {nnz}\)"),
        (normal(2, nnz)[:, ::-1], "x: expected a contiguous"),
    ):
        with pytest.raises(OperandError, match=words):
            softmax(given)
    own = sparsegen.prepare(pattern, n=8, batch=2, item_values="own")
    shared = sparsegen.prepare(pattern, n=8, batch=2)
    with pytest.raises(OperandError, match=rf"values: expected shape \(2, {nnz}\), got \({nnz},\)"):
        own.update_values(normal(nnz))
    with pytest.raises(OperandError, match=rf"values: expected shape \({nnz},\), got \(2, {nnz}\)"):
        shared.update_values(normal(2, nnz))
    prepare: Any = sparsegen.prepare
    for options, words in (
        ({"n": 8, "batch": 0}, "batch = 0 is outside"),
        ({"n": 8, "item_values": "own"}, "for a batch of several elements"),
        ({"n": 8, "batch": 2, "item_values": "mine"}, "item_values = 'mine' is none of shared, own"),
        ({"operator": "sddmm", "k": 8, "batch": 2, "item_values": "own"}, "sddmm takes no item_values"),
        ({"n": 8, "batch": 2, "dense": "always"}, r"dense = always runs one batch element; .* \(batch = 2\)"),
        ({"n": 8, "batch": 70_000, "family": "csr_spmm"}, "a grid has at most 65535 batch elements along z"),
        ({"n": 8, "batch": 2, "family": "uspmm"}, r"a launch computes one batch element \(batch = 2\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            prepare(pattern, **options)


def problems(batch: int) -> dict[str, Problem]:
    options: dict[str, Any] = {"dtype": "float16", "n": 8, "k": 16, "layout": Layout.COLUMN}
    options |= {"channels": 16, "filters": 32, "images": 2, "kv_heads": 2, "group": 1, "head_dim": 16}
    return {
        name: kind.of((M, N), batch=batch, **{o: options[o] for o in ("dtype", *kind.dense_sizes)})
        for name, kind in OPERATORS.items()
    }


def test_families_say_whether_they_take_batches() -> None:
    several = problems(2)
    taking = [f.name for f in families().values() if f.computes(several[f.problem_type.operator])]
    assert set(taking) >= set(BATCHED)
    for name in BATCHED:
        operator = families()[name].problem_type.operator
        assert families()[name].computes(problems(65535)[operator])
        assert not families()[name].computes(problems(65536)[operator]), "the grid's limit"
    others = {f.name for f in families().values()} - set(taking)
    for name in ("uspmm", "uspmm_vec", "lane_stream_spmm"):
        sentences = [c.sentence for c in families()[name].scope(several["spmm"]) if not c.holds]
        assert name in others and "a launch computes one batch element (batch = 2)" in sentences


@pytest.mark.parametrize("name", ["row_softmax", "csr_spmm", "panel_spmm"])
def test_an_item_that_is_not_computed_is_found(
    pattern: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification fills the output with NaN first, and gives each batch element values of its own."""
    family, csr = families()[name], sparsegen.as_csr(pattern)
    problem = problems(BATCH)[family.problem_type.operator]
    if name != "row_softmax":
        problem = replace(problem, item_values="own", dtype=DType.FLOAT32)  # type: ignore[call-arg]
    choice = named_choice(problem, Features.of(csr), device(), name, {})

    def worst() -> float:
        variant = bind_variant(
            choice.config, problem, csr, shared_executor(device()), backends.toolchain(device())
        )
        return worst_error(variant, problem, csr, np.random.default_rng(0))

    assert worst() <= 1
    honest = type(family).launch

    def short(self: Any, *args: Any) -> Any:
        launch = honest(self, *args)
        return replace(launch, grid=(*launch.grid[:2], BATCH - 1))

    monkeypatch.setattr(type(family), "launch", short)
    assert worst() == np.inf
