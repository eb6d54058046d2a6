"""Sparse attention for PyTorch: dense attention's results and gradients, by PyTorch and by the kernels."""

from __future__ import annotations

import copy
import gc
import io
import math
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

from sparsegen import (  # noqa: E402
    api,
    masks,
)
from sparsegen.attention import steps  # noqa: E402
from sparsegen.dispatch import decision  # noqa: E402
from sparsegen.dispatch.decision import Decision  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import SparseAttention, SparsePattern, sparse_attention  # noqa: E402
from sparsegen.integrations.torch.attention import attention_choice  # noqa: E402
from sparsegen.integrations.torch.calls.prepared import Prepared  # noqa: E402
from sparsegen.integrations.torch.pattern.carried_patterns import HELD  # noqa: E402
from sparsegen.matrix.generators import random_rows  # noqa: E402
from sparsegen.tuning_db.records import Called  # noqa: E402

# Not whether a trace that knows no tensor's data can have a gradient by handle: it may leave the process.
IN_THIS_PROCESS = ("test_schema", "test_autograd_registration", "test_faketensor")
QUERIES, KEYS, HEAD_DIM, HEADS = 21, 29, 12, 2
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@pytest.fixture
def pattern() -> SparsePattern:
    csr = random_rows(QUERIES, KEYS, 0.3, 0.6, 3).to_scipy().tolil()
    csr[[0, 7]] = 0  # queries that see nothing
    return SparsePattern(csr.tocsr())


def operands(dtype: Any = None, lead: tuple[int, ...] = (HEADS,), *, grad: bool = False) -> list[Any]:
    torch.manual_seed(0)
    return [
        torch.randn((*lead, rows, HEAD_DIM), dtype=dtype or torch.float32, requires_grad=grad)
        for rows in (QUERIES, KEYS, KEYS)
    ]


def dense_attention(pattern: SparsePattern, q: Any, k: Any, v: Any, scale: float = HEAD_DIM**-0.5) -> Any:
    seen = torch.from_numpy(pattern.matrix.to_scipy().toarray() != 0)
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(
        ~seen, -1e300 if q.dtype is torch.float64 else -1e30
    )
    return (scores.softmax(-1) * seen.any(1, keepdim=True)) @ v


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_results_and_gradients_are_those_of_dense_attention(
    pattern: SparsePattern, place: str, dtype: Any
) -> None:
    given = operands(dtype, grad=True)
    wide = [t.detach().double().requires_grad_() for t in given]
    out, right = sparse_attention(*given, pattern), dense_attention(pattern, *wide)
    assert out.dtype is dtype and out.is_contiguous() and not out[:, [0, 7]].any()
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(out.double(), right, **close)
    seed = torch.randn_like(out)
    gradients = torch.autograd.grad(out, given, seed)
    for ours, theirs in zip(gradients, torch.autograd.grad(right, wide, seed.double()), strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), theirs, **close)
    with torch.no_grad():
        assert torch.equal(sparse_attention(*given, pattern), out), "without the weights kept"
    assert bool(pattern._prepared) == (place == "emulator" and dtype is not torch.float64)


def test_derivatives(pattern: SparsePattern) -> None:
    def attend(*given: Any) -> Any:
        return sparse_attention(*given, pattern, 0.7)

    assert torch.autograd.gradcheck(attend, operands(torch.float64, grad=True))


def test_gradients_of_the_second_order_are_refused(pattern: SparsePattern) -> None:
    given = operands(grad=True)
    (dq,) = torch.autograd.grad(sparse_attention(*given, pattern).square().sum(), given[0], create_graph=True)
    with pytest.raises(OperandError, match="first order alone"):
        dq.sum().backward()


@pytest.mark.parametrize("keeps", [True, False])
def test_the_operators_keep_pytorchs_rules(pattern: SparsePattern, place: str, keeps: bool) -> None:
    given = operands(grad=keeps)
    held, ops = HELD.carried(pattern), torch.ops.sparsegen
    torch.library.opcheck(ops.attention, (*given, 0.3, keeps, pattern.handle), test_utils=IN_THIS_PROCESS)
    torch.library.opcheck(ops.attention_carried, (*given, 0.3, keeps, *held))
    if keeps:
        out, weights = torch.ops.sparsegen.attention(*given, 0.3, True, pattern.handle)
        detached = (torch.ones_like(out), *(t.detach() for t in (*given, weights)))
        torch.library.opcheck(ops.attention_backward, (*detached, None, 0.3, pattern.handle))
        torch.library.opcheck(ops.attention_backward_carried, (*detached, None, 0.3, *held))


@pytest.mark.parametrize("lead", [(), (1,), (3, HEADS), (0,)])
def test_leading_dimensions(pattern: SparsePattern, lead: tuple[int, ...]) -> None:
    given = operands(lead=lead)
    out = sparse_attention(*given, pattern)
    assert out.shape == (*lead, QUERIES, HEAD_DIM)
    torch.testing.assert_close(out, dense_attention(pattern, *given))


def test_operands_that_are_not_contiguous(pattern: SparsePattern, place: str) -> None:
    tokens_first = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in operands()]
    given = [t.requires_grad_() for t in tokens_first]
    assert not given[0].is_contiguous()
    out = sparse_attention(*given, pattern)
    right = dense_attention(pattern, *given)
    torch.testing.assert_close(out, right)
    for ours, theirs in zip(
        torch.autograd.grad(out.sum(), given), torch.autograd.grad(right.sum(), given), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
def test_five_operators_serve_every_step(
    pattern: SparsePattern, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, prepare = [], api.prepare
    monkeypatch.setattr(
        api, "prepare", lambda *args, **options: calls.append(options) or prepare(*args, **options)
    )
    for _ in range(3):
        given = operands(grad=True)
        sparse_attention(*given, pattern).sum().backward()
    assert len(calls) == 5  # scores, softmax, its gradient, and a product each way
    with torch.no_grad():
        for scale in (1.0, 2.0):
            given = operands()
            torch.testing.assert_close(
                sparse_attention(*given, pattern, scale), dense_attention(pattern, *given, scale)
            )
    assert len(calls) == 7, "a scale is a softmax of its own"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_heads_in_turns_are_heads_at_once(
    pattern: SparsePattern, place: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend() -> list[Any]:
        given = operands(dtype, (3, HEADS), grad=True)
        out = sparse_attention(*given, pattern)
        with torch.no_grad():
            assert torch.equal(sparse_attention(*given, pattern), out)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    at_once = attend()
    for most in (4, 1):  # heads that there is room for, of which 3 divide the 6
        monkeypatch.setattr(steps, "MOST_SCORES_BYTES", most * pattern.nnz * dtype.itemsize)
        for one, other in zip(attend(), at_once, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-3 if dtype is torch.float16 else 1e-5, atol=1e-3)
    batches = {key[-1] for key in pattern._prepared}
    assert batches == ({6, 3, 1} if place == "emulator" else set())


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
def test_launches_do_not_depend_on_the_number_of_heads(
    pattern: SparsePattern, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    honest = Prepared.__call__
    monkeypatch.setattr(
        Prepared, "__call__", lambda self, *a, **o: calls.append(self.operator) or honest(self, *a, **o)
    )
    for lead in ((1,), (3, HEADS)):
        calls.clear()
        sparse_attention(*operands(lead=lead, grad=True), pattern).sum().backward()
        assert len(calls) == 8  # three forward, five backward


@pytest.mark.parametrize("place", ["emulator"], indirect=True)
@pytest.mark.parametrize("lead", [(1,), (2, HEADS)])
def test_without_gradients_the_fused_kernel_runs_where_it_should_be_faster(
    place: str, lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    honest = Prepared.__call__
    monkeypatch.setattr(
        Prepared, "__call__", lambda self, *a, **o: calls.append(self.operator) or honest(self, *a, **o)
    )
    own = SparsePattern(masks.sliding_window(40, 20))
    torch.manual_seed(0)
    given = [torch.randn((*lead, 40, 16), dtype=torch.float16, requires_grad=True) for _ in range(3)]
    trained = sparse_attention(*given, own)
    assert not calls, "by blocks, whose gradients take less time than those of the steps"
    with torch.no_grad():
        out = sparse_attention(*given, own)
        assert [call.problem.operator for call in calls] == ["sparse_attention"]
        assert calls[0].problem.batch == math.prod(lead)
        torch.testing.assert_close(out, trained, rtol=0, atol=4e-3)
        calls.clear()
        sparse_attention(*(t.float() for t in given), own)
        assert len(calls) == 3, "elements of 32 bits"


def test_a_compiled_module_is_one_graph(pattern: SparsePattern) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    layer = SparseAttention(pattern, HEADS, HEAD_DIM)
    compiled = torch.compile(lambda *given: layer(*given).square().sum(), backend=counter, fullgraph=True)
    for _ in range(2):
        given = operands(grad=True)
        loss, right = compiled(*given), dense_attention(pattern, *given).square().sum()
        torch.testing.assert_close(loss, right)
        for ours, theirs in zip(
            torch.autograd.grad(loss, given), torch.autograd.grad(right, given), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


def test_it_is_pytorchs_attention_with_the_same_mask() -> None:
    mask = masks.band(48, 8, 0.8, seed=2)
    seen = torch.from_numpy(mask.to_scipy().toarray() != 0)
    q, k, v = (torch.randn(2, 4, 48, 16) for _ in range(3))
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(SparseAttention(mask, 4, 16)(q, k, v), right)


def test_a_state_dict_brings_its_mask() -> None:
    one, other = (SparseAttention(masks.sliding_window(QUERIES, w), HEADS, HEAD_DIM) for w in (3, 6))
    given = [t[:, :QUERIES] for t in operands()]
    assert list(one.state_dict()) == ["row_offsets", "column_indices"] and not list(one.parameters())
    stored = io.BytesIO()
    torch.save(one.state_dict(), stored)
    stored.seek(0)
    assert not torch.equal(one(*given), other(*given))
    other.load_state_dict(torch.load(stored, weights_only=True))
    assert torch.equal(one(*given), other(*given))
    with pytest.raises(RuntimeError, match="offsets"):
        other.load_state_dict(SparseAttention(masks.sliding_window(9, 2), HEADS, HEAD_DIM).state_dict())
    assert torch.equal(one(*given), other(*given))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_independent(copied: Any, pattern: SparsePattern, place: str) -> None:
    layer = SparseAttention(pattern, HEADS, HEAD_DIM, scale=0.4)
    given = operands()
    out = layer(*given)
    twin = copied(layer)
    assert twin.pattern is not layer.pattern and not twin.pattern._prepared
    del layer
    gc.collect()
    assert torch.equal(twin(*given), out) and twin.scale == 0.4


def test_autocast(pattern: SparsePattern) -> None:
    given = operands(grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = SparseAttention(pattern, HEADS, HEAD_DIM)(*given)
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.float(), dense_attention(pattern, *given), rtol=5e-2, atol=5e-2)
    out.float().sum().backward()
    assert all(t.grad.dtype is torch.float32 for t in given)


def test_a_graph_keeps_its_pattern() -> None:
    given = [torch.randn(1, 5, 4, requires_grad=True) for _ in range(3)]
    loss = SparseAttention(masks.sliding_window(5, 1), 1, 4)(*given).sum()
    gc.collect()
    loss.backward()
    torch.testing.assert_close(given[2].grad, torch.ones(1, 5, 4))


def test_nothing_to_attend_to(place: str) -> None:
    for shape in ((0, 5), (5, 0), (4, 6)):
        empty = SparsePattern(np.zeros(shape, np.float32))
        q, k, v = (torch.ones(2, rows, 8, requires_grad=True) for rows in (shape[0], shape[1], shape[1]))
        out = sparse_attention(q, k, v, empty)
        out.sum().backward()
        assert out.shape == q.shape and not out.any()
        assert all(t.grad is not None and not t.grad.any() for t in (q, k, v))


def test_what_does_not_fit_is_refused(pattern: SparsePattern) -> None:
    q, k, v = operands()
    for given, words in (
        ((q, q, v), r"k: expected shape \(2, 29, 12\) for a mask of 21 queries × 29 keys, got \(2, 21, 12\)"),
        ((q[0], k, v), r"k: expected shape \(29, 12\)"),
        ((q[0, 0], k, v), r"q: expected \.\.\. × queries × head_dim"),
        ((q, k, v[..., :3]), "v: expected shape"),
        ((q, k.half(), v), r"k: expected torch\.float32 on cpu, got torch\.float16"),
    ):
        with pytest.raises(OperandError, match=words):
            sparse_attention(*given, pattern)
    layer = SparseAttention(pattern, HEADS, HEAD_DIM)
    with pytest.raises(OperandError, match=r"q: expected \.\.\. × 2 heads × 21 queries × head_dim 12"):
        layer(q[:1], k[:1], v[:1])
    with pytest.raises(OperandError, match="heads=0"):
        SparseAttention(pattern, 0, HEAD_DIM)
    leaf = q.clone().requires_grad_()
    out, _ = torch.ops.sparsegen.attention(leaf, k, v, 1.0, False, pattern.handle)
    with pytest.raises(OperandError, match="were not kept for the backward pass"):
        out.sum().backward()
    assert "heads=2, head_dim=12, queries=21, keys=29" in repr(layer)


@pytest.mark.parametrize("captures", [False, True])
def test_the_way_of_being_called_says_which_kernels_run(
    monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    way, ran, ready = Decision(from_host=True, on_device=False, why="a test"), [], []
    monkeypatch.setattr(attention_choice, "decide_implementation", lambda *_: way)
    monkeypatch.setattr(
        attention_choice, "make_ready", lambda entrants: ready.extend(entrants.pair(Called.HOST))
    )
    monkeypatch.setattr(decision, "is_capturing", lambda: captures)
    prepare = api.prepare

    def seen(*arguments: Any, **options: Any) -> Any:
        ran.append(options.get("operator", "spmm"))
        return prepare(*arguments, **options)

    pattern = SparsePattern(masks.sliding_window(32, 8))
    q, k, v = (torch.randn(2, 32, 16).half() for _ in range(3))
    expected = dense_attention(pattern, q.float(), k.float(), v.float(), 0.25)
    sparse_attention(q, k, v, pattern)
    monkeypatch.setattr(api, "prepare", seen)
    for pass_ in ready:  # both, so that a capture finds prepared operators
        pass_()
    pattern.forget()
    ran.clear()
    torch.testing.assert_close(sparse_attention(q, k, v, pattern).float(), expected, rtol=1e-2, atol=1e-2)
    assert len(ready) == 2
    assert ran == (["sddmm", "sparse_softmax", "spmm"] if captures else ["sparse_attention"])
