"""Attention with masks of blocks for PyTorch: dense attention's results and gradients, for every option."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from sparsegen import backends  # noqa: E402
from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import BlockMaskTensor, block_attention  # noqa: E402
from sparsegen.integrations.torch.attention import block_attention_kernels as kernels  # noqa: E402
from sparsegen.integrations.torch.attention import plain_block_attention as plain  # noqa: E402
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks  # noqa: E402
from sparsegen.integrations.torch.calls import devices  # noqa: E402
from sparsegen.integrations.torch.calls.launches import calls  # noqa: E402
from sparsegen.integrations.torch.calls.prepared_operators import operators  # noqa: E402
from sparsegen.kernels.base import Constraint  # noqa: E402
from sparsegen.operators import BlockAttentionProblem, DType, MasksOf, TokenOrder  # noqa: E402
from sparsegen.operators.attention.span import Band  # noqa: E402

BATCH, HEADS, GROUP, QUERIES, KEYS, HEAD_DIM, BLOCK = 2, 4, 2, 40, 56, 16, (16, 32)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])
SINK_LOGITS = torch.tensor([1.0, -2.0, 0.5, 3.0])
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"causal": True},
    "causal from the start": {"causal": True, "from_start": True},
    "window": {"window": 9},
    "causal window and sinks": {"causal": True, "window": 7, "sinks": 3},
    "scale": {"scale": 0.7},
    "softcap": {"softcap": 1.5, "scale": 1.0},
    "slopes": {"slopes": SLOPES, "causal": True},
    "slopes and a softcap": {"slopes": SLOPES, "softcap": 2.0},
    "learned sinks": {"sink_logits": SINK_LOGITS},
    "tokens": {"order": "tokens"},
}


def operands(
    dtype: Any = None, *, grad: bool = False, order: str = "heads", lead: tuple[int, int] = (BATCH, HEADS)
) -> list[Any]:
    torch.manual_seed(0)
    made = []
    for heads, tokens in ((lead[1], QUERIES), (lead[1] // GROUP, KEYS), (lead[1] // GROUP, KEYS)):
        shape = (heads, tokens) if order == "heads" else (tokens, heads)
        tensor = torch.randn(lead[0], *shape, HEAD_DIM, dtype=torch.float64)
        made.append(tensor.to(dtype or torch.float32).requires_grad_(grad))
    return made


def some_mask(lead: tuple[int, ...] = (), block: tuple[int, int] = BLOCK) -> BlockMaskTensor:
    """Makes masks whose first row of blocks is dead."""
    rows, columns = -(-QUERIES // block[0]), -(-KEYS // block[1])
    live = torch.from_numpy(np.random.default_rng(len(lead)).random((*lead, rows, columns)) < 0.6)
    live[..., 0, :] = False
    live[..., 1, 0] = True
    return BlockMaskTensor.from_blocks(live, block, (QUERIES, KEYS))


def some_elements(*lead: int) -> Any:
    return torch.from_numpy(np.random.default_rng(5).random((*lead, QUERIES, KEYS)) < 0.7)


def dense(
    q: Any,
    k: Any,
    v: Any,
    mask: BlockMaskTensor | None = None,
    *,
    elements: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Any = None,
    sink_logits: Any = None,
    order: str = "heads",
    **span: Any,
) -> tuple[Any, Any]:
    """The same by scores of all places, and autograd."""
    if order == "tokens":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    queries, keys = q.shape[2], k.shape[2]
    span["window"] = span.get("window") or 0
    seen = torch.from_numpy(Band.of(queries, keys, **span).seen(slice(0, queries), keys))
    if mask is not None:
        live = mask.expand()
        seen = seen & live[(None,) * (4 - live.dim())]
    if elements is not None:
        seen = seen & elements
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        away = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
        scores = scores - slopes[:, None, None].to(scores.dtype) * away.abs()
    seen = seen.expand(scores.shape)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sink_logits is not None:
        sunk = sink_logits.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores, seen = torch.cat((scores, sunk), -1), torch.cat((seen, torch.ones_like(sunk).bool()), -1)
        v = torch.cat((v, torch.zeros_like(v[..., :1, :])), -2)
    sees = seen.any(-1, keepdim=True)
    weights = torch.where(sees, scores, 0).softmax(-1) * sees
    out = weights @ v
    return (out.transpose(1, 2) if order == "tokens" else out), scores.logsumexp(-1)


def close(one: Any, other: Any, dtype: Any) -> None:
    torch.testing.assert_close(one.double(), other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_results_and_gradients_are_those_of_dense_attention(options: dict[str, Any], dtype: Any) -> None:
    given = operands(dtype, grad=True, order=options.get("order", "heads"))
    wide = [t.detach().double().requires_grad_() for t in given]
    mask = some_mask((BATCH, HEADS))
    out, lse = block_attention(*given, mask, return_lse=True, **options)
    right, right_lse = dense(*wide, mask, **options)
    assert out.dtype is dtype and out.shape == given[0].shape and not lse.requires_grad
    close(out, right, dtype)
    close(lse, right_lse, dtype)
    unseen = lse[..., :16]
    assert unseen.isneginf().all() or torch.equal(
        unseen, SINK_LOGITS[:, None].to(lse.dtype).expand_as(unseen)
    )
    assert not out.narrow(1 if "order" in options else 2, 0, 16).any()
    seed = torch.randn_like(out)
    gradients = torch.autograd.grad(out, given, seed)
    for ours, theirs in zip(gradients, torch.autograd.grad(right, wide, seed.double()), strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours.double(), theirs, rtol=TOLERANCE[dtype], atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("lead", [(), (HEADS,), (1, HEADS), (BATCH, 1), (BATCH, HEADS)])
def test_whose_masks(lead: tuple[int, ...]) -> None:
    given = operands(torch.float64)
    mask = some_mask(lead)
    close(block_attention(*given, mask, causal=True), dense(*given, mask, causal=True)[0], torch.float64)


@pytest.mark.parametrize("lead", [(), (HEADS,), (BATCH, 1), (BATCH, HEADS)])
def test_exact_elements(lead: tuple[int, ...]) -> None:
    given, elements = operands(torch.float64), some_elements(*lead)
    for mask in (None, some_mask()):
        out = block_attention(*given, mask, elements=elements)
        close(out, dense(*given, mask, elements=elements)[0], torch.float64)
    padding = some_elements(BATCH, 1)[:, :, :1]
    close(block_attention(*given, elements=padding), dense(*given, elements=padding)[0], torch.float64)


@pytest.mark.parametrize("options", [*OPTIONS.values(), {"elements": some_elements(HEADS)}], ids=str)
def test_derivatives(options: dict[str, Any]) -> None:
    order = options.get("order", "heads")
    given = [
        t.detach()
        .narrow(2 if order == "tokens" else 1, 0, heads)
        .narrow(-1, 0, 3)[:1]
        .clone()
        .requires_grad_()
        for t, heads in zip(operands(torch.float64, order=order), (2, 1, 1), strict=True)
    ]
    options = {k: (v[:2] if isinstance(v, torch.Tensor) else v) for k, v in options.items()}
    mask = some_mask((2,))
    assert torch.autograd.gradcheck(
        lambda *t: block_attention(*t, mask, **options), given, fast_mode=True, atol=1e-6
    )


def test_learned_sinks_have_a_gradient() -> None:
    given = operands(torch.float64, grad=True)
    logits = SINK_LOGITS.double().requires_grad_()
    right = dense(*given, some_mask((HEADS,)), sink_logits=logits)[0]
    out = block_attention(*given, some_mask((HEADS,)), sink_logits=logits)
    seed = torch.randn_like(out)
    wanted = torch.autograd.grad(right, [*given, logits], seed)
    for ours, theirs in zip(torch.autograd.grad(out, [*given, logits], seed), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(
        lambda own: block_attention(*(t.detach() for t in given), sink_logits=own), [logits], fast_mode=True
    )


def test_gradients_that_are_not_asked_for_and_of_the_second_order() -> None:
    q, k, v = operands()
    q.requires_grad_()
    out, lse = block_attention(q, k, v, return_lse=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        lse.sum().backward()
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(OperandError, match="first order alone"):
        dq.sum().backward()


def test_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend() -> list[Any]:
        given = operands(torch.float64, grad=True)
        out = block_attention(*given, some_mask((HEADS,)), elements=some_elements(), causal=True)
        return [out, *torch.autograd.grad(out.square().sum(), given)]

    whole = attend()
    monkeypatch.setattr(plain, "CHUNK", GROUP * KEYS * 7)  # 7 of 40 queries at a time
    for one, other in zip(attend(), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_nothing_to_do(sizes: tuple[int, int, int, int]) -> None:
    batch, heads, queries, keys = sizes
    q = torch.randn(batch, heads, queries, 8, requires_grad=True)
    k, v = (torch.randn(batch, heads, keys, 8, requires_grad=True) for _ in range(2))
    out, lse = block_attention(q, k, v, return_lse=True)
    assert out.shape == q.shape and lse.shape == q.shape[:3]
    assert not out.any() and lse.isneginf().all()
    for tensor, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert gradient.shape == tensor.shape and not gradient.any()


# --- memory orders ---


def test_the_result_lies_as_q_does() -> None:
    by_tokens = [t.transpose(1, 2) for t in operands(order="tokens", grad=False)]
    out = block_attention(*by_tokens)
    assert out.transpose(1, 2).is_contiguous()
    assert block_attention(*(t.contiguous() for t in by_tokens)).is_contiguous()
    fused = torch.randn(BATCH, QUERIES, 3, HEADS, HEAD_DIM)
    parts = [t.transpose(1, 2) for t in fused.unbind(2)]
    torch.testing.assert_close(block_attention(*parts), dense(*parts)[0], rtol=1e-5, atol=1e-5)
    leaf = fused.clone().requires_grad_()
    block_attention(*leaf.unbind(2), order="tokens").sum().backward()
    assert leaf.grad is not None and leaf.grad.shape == fused.shape


# --- what PyTorch asks of operators ---


@pytest.mark.parametrize("options", ["none", "causal window and sinks", "tokens"])
def test_the_operators_keep_pytorchs_rules(place: str, options: str) -> None:
    calls: list[tuple[Any, ...]] = []
    honest = torch.ops.sparsegen.block_attention

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name().startswith("sparsegen::block_attention"):
                calls.append(args)
            return func(*args, **(kwargs or {}))

    order = OPTIONS[options].get("order", "heads")
    given = operands(grad=True, order=order)
    with Watched():
        block_attention(*given, some_mask((HEADS,)), **OPTIONS[options]).sum().backward()
    forward, backward = calls
    detached = [a.detach() if isinstance(a, torch.Tensor) and a.dtype != torch.uint64 else a for a in forward]
    for i in range(3):
        detached[i] = detached[i].requires_grad_()
    torch.library.opcheck(honest, tuple(detached))
    torch.library.opcheck(
        torch.ops.sparsegen.block_attention_backward,
        tuple(a.detach() if isinstance(a, torch.Tensor) and a.dtype != torch.uint64 else a for a in backward),
    )


def test_compiled_whole(place: str) -> None:
    def attend(q: Any, k: Any, v: Any, live: Any) -> Any:
        mask = BlockMaskTensor.from_blocks(live, BLOCK, (QUERIES, KEYS))
        return block_attention(q, k, v, mask, causal=True, order="tokens").square()

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend, fullgraph=True, backend=counter)
    given = operands(order="tokens", grad=True)
    for seed in (1, 2):
        live = some_mask((BATCH, HEADS)).blocks().roll(seed, -1)
        out, right = compiled(*given, live), attend(*given, live)
        torch.testing.assert_close(out, right)
        for one, other in zip(
            torch.autograd.grad(out.sum(), given), torch.autograd.grad(right.sum(), given), strict=True
        ):
            torch.testing.assert_close(one, other)
    assert counter.frame_count == 1, "a new mask compiles nothing"


def test_autocast_casts_as_dense_attention_does() -> None:
    given = operands(grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = block_attention(*given)
        assert out.dtype is torch.nn.functional.scaled_dot_product_attention(*given, enable_gqa=True).dtype
    assert out.dtype is torch.bfloat16
    assert torch.autograd.grad(out.sum(), given)[0].dtype is torch.float32


def test_a_mask_is_data_of_the_call() -> None:
    """The contents of its buffer at the time of the call count, as in a captured graph."""
    given, mask, other = operands(), some_mask(), some_mask((HEADS,))[2]
    mask.words.view(torch.int64).copy_(other.words.view(torch.int64))
    torch.testing.assert_close(block_attention(*given, mask), dense(*given, other)[0], rtol=1e-5, atol=1e-5)


# --- kernels ---


class Reference:
    """An operator in a kernel's place: the problem's reference, of arrays by their operands' names."""

    def __init__(self, problem: BlockAttentionProblem, scale: float, softcap: float | None) -> None:
        self.problem, self.scale, self.softcap = problem, scale, softcap

    def __call__(self, **given: Any) -> Any:
        problem, stored = self.problem, {}
        given |= {"scale": np.array([self.scale], np.float32), "band": problem.band.words}
        if self.softcap is not None:
            given["softcap"] = np.array([self.softcap], np.float32)
        specs = problem.operands(0)
        assert given.keys() == {spec.name for spec in specs}
        for spec in specs:
            assert given[spec.name].shape == spec.shape, spec.name
            assert given[spec.name].flags.c_contiguous
            stored[spec.name] = spec.dtype.to_storage(given[spec.name])
        found = problem.reference(problem.without_pattern, stored).exact
        for name, reference in problem.written_references(problem.without_pattern, stored).items():
            given[name][...] = reference.exact
        return found.reshape(problem.result(0).shape).astype(np.float32)


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> list[BlockAttentionProblem]:
    """A kernel for every problem, in the emulator; the problems that were asked for."""
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    asked: list[BlockAttentionProblem] = []

    def get(
        problem: Any,
        device: Any,
        captures: bool,
        *,
        scale: float,
        deterministic: Any,
        softcap: float | None = None,
    ) -> Reference:
        asked.append(problem)
        return Reference(problem, scale, softcap)

    monkeypatch.setattr(kernels, "has_kernel", lambda *_: True)
    monkeypatch.setattr(operators, "get", get)
    monkeypatch.setattr(calls, "known", {})
    return asked


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", ["heads", "tokens"])
@pytest.mark.parametrize("kind", ["none", "all", "items", "heads", "both"])
def test_kernels_get_what_the_problem_says(
    reference: list[BlockAttentionProblem], batch: int, dtype: Any, order: str, kind: str
) -> None:
    lead = {"all": (), "items": (batch, 1), "heads": (HEADS,), "both": (batch, HEADS)}
    mask = None if kind == "none" else some_mask(lead[kind])
    given = operands(dtype, order=order, lead=(batch, HEADS), grad=True)
    wide = [t.detach().double().requires_grad_() for t in given]
    span = {"causal": True, "window": 20, "sinks": 2}
    right, right_lse = dense(*wide, mask, order=order, scale=0.4, **span)
    seed = torch.randn_like(given[0])
    gradients = torch.autograd.grad(right, wide, seed.double())
    for _ in range(2):  # checked, and as before
        out, lse = block_attention(*given, mask, order=order, return_lse=True, scale=0.4, **span)
        close(out, right, dtype)
        close(lse, right_lse, torch.float32)
        assert out.is_contiguous()
        for ours, theirs in zip(torch.autograd.grad(out, given, seed), gradients, strict=True):
            assert ours.dtype is dtype and ours.is_contiguous()
            tolerance = 4 * TOLERANCE[dtype]
            torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)
    problem, backward = reference
    assert (problem.operator, backward.operator) == ("block_attention", "block_attention_backward")
    of_united_blocks = {"block", "density", "partial_blocks"} if mask is not None else set()
    for name in set(problem.fields) - of_united_blocks:
        assert getattr(problem, name) == getattr(backward, name), name
    if mask is not None:
        assert (str(problem.block), str(backward.block)) == ("16x32", "64x64")
        assert (problem.has_partial, backward.has_partial) == (False, True)
    masks = {"none": MasksOf.NOBODY, "all": MasksOf.ALL, "heads": MasksOf.HEADS}
    masks["items"] = MasksOf.ITEMS if batch > 1 else MasksOf.ALL
    masks["both"] = MasksOf.ITEMS_AND_HEADS if batch > 1 else MasksOf.HEADS
    assert problem.masks is masks[kind] and problem.order is TokenOrder(order)
    assert (problem.batch, problem.kv_heads, problem.group) == (batch, HEADS // GROUP, GROUP)
    assert problem.dtype is DType(str(dtype).removeprefix("torch.")) and str(problem.span) == "causal:20+2"


@pytest.mark.parametrize(
    "options", ["softcap", "slopes", "slopes and a softcap", "learned sinks", "elements"]
)
def test_kernels_get_changes_of_scores_and_partial_blocks(
    reference: list[BlockAttentionProblem], options: str
) -> None:
    more = {"elements": some_elements(BATCH, 1)} if options == "elements" else OPTIONS[options]
    given = operands(torch.float16, grad=True)
    wide = [t.detach().double().requires_grad_() for t in given]
    logits = SINK_LOGITS.clone().requires_grad_()
    if options == "learned sinks":
        more = {"sink_logits": logits}
        given, wide = [*given, logits], [*wide, SINK_LOGITS.double().requires_grad_()]
    of_dense = more | ({"sink_logits": wide[3]} if options == "learned sinks" else {})
    right = dense(*wide[:3], some_mask((HEADS,)), **of_dense)[0]
    out = block_attention(*given[:3], some_mask((HEADS,)), **more)
    close(out, right, torch.float16)
    seed = torch.randn_like(out)
    wanted = torch.autograd.grad(right, wide, seed.double())
    for ours, theirs in zip(torch.autograd.grad(out, given, seed), wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=2e-2)
    assert len(reference) == 2 and reference[0].has_options
    block_attention(*given[:3], some_mask((HEADS,)), **more)
    assert len(reference) == 2, "other numbers ask for nothing new"


def test_other_masks_ask_for_nothing_new(reference: list[BlockAttentionProblem]) -> None:
    given = operands(torch.float16)
    for seed in range(3):
        live = some_mask((HEADS,)).blocks().roll(seed, -1)
        mask = BlockMaskTensor.from_blocks(live, BLOCK, (QUERIES, KEYS))
        close(block_attention(*given, mask), dense(*(t.double() for t in given), mask)[0], torch.float16)
    assert len(reference) == 1


def test_the_log_says_once_where_no_kernel_computes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    kernels._say_once.cache_clear()
    kernels.has_kernel.cache_clear()
    given = operands()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            block_attention(*given)  # of float32
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and told[0].startswith("PyTorch computes this attention")
    assert "no kernel computes it on emulator" in told[0]


@pytest.mark.slow
@pytest.mark.parametrize("options", ["none", "causal window and sinks", "slopes", "learned sinks", "tokens"])
def test_a_gpu_before_hopper_has_kernels(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    older = replace(
        backends.emulator_device(),
        compute_capability=(8, 0),
        shared_memory_per_block=163 << 10,
        shared_memory_per_multiprocessor=164 << 10,
    )
    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(devices, "_devices", {"emulator": older})
    monkeypatch.setattr(calls, "known", {})
    monkeypatch.setattr(plain, "attention", None)
    monkeypatch.setattr(plain, "attention_backward", None)
    order = OPTIONS[options].get("order", "heads")
    given = operands(torch.float16, order=order, grad=True)
    wide = [t.detach().double().requires_grad_() for t in given]
    out, lse = block_attention(*given, some_mask((HEADS,)), return_lse=True, **OPTIONS[options])
    right, right_lse = dense(*wide, some_mask((HEADS,)), **OPTIONS[options])
    close(out, right, torch.float16)
    close(lse, right_lse, torch.float32)
    seed = torch.randn_like(out)
    wanted = torch.autograd.grad(right, wide, seed.double())
    for ours, theirs in zip(torch.autograd.grad(out, given, seed), wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-2, atol=2e-2)


def test_a_problem_outside_of_a_family_s_scope_meets_no_heuristic(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Narrow:
        name = "narrow_attention"

        def scope(self, problem: BlockAttentionProblem) -> Any:
            yield Constraint(problem.head_dim == 64, f"head_dim ({problem.head_dim}) is 64")

    monkeypatch.setenv("SPARSEGEN_DEVICE", "emulator")
    monkeypatch.setattr(kernels, "families_of", lambda _: [Narrow()])
    kernels._say_once.cache_clear()
    kernels.has_kernel.cache_clear()
    with caplog.at_level(logging.WARNING):
        block_attention(*operands(torch.float16), window=11)
    kernels.has_kernel.cache_clear()
    assert "narrow_attention: head_dim (16) is 64" in caplog.records[0].getMessage()


# --- what is refused ---


PARTIAL = PartialBlocks.of_bools(torch.ones(QUERIES, KEYS, dtype=torch.bool), (16, 16))[1]


def bad(**changes: Any) -> Any:
    q, k, v = operands()
    given = {"q": q, "k": k, "v": v, "mask": None} | changes
    return block_attention(given.pop("q"), given.pop("k"), given.pop("v"), given.pop("mask"), **given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": torch.randn(4, 40, 16)}, r"q: expected batch × heads × tokens × head_dim, got .*q\[None\]"),
        ({"q": [1.0]}, "q: expected a torch.Tensor, got list"),
        ({"q": torch.ones(2, 4, 40, 16, dtype=torch.int64)}, "q: expected floating-point numbers"),
        ({"k": torch.randn(2, 3, 56, 16)}, r"v: expected shape 2 × 3 × 56 × any columns, as k has"),
        ({"k": torch.randn(2, 3, 56, 16), "v": torch.randn(2, 3, 56, 16)}, r"its heads \(3\) do not divide q's \(4\)"),
        ({"k": torch.randn(2, 2, 56, 8)}, "k: expected shape 2 × any heads × any keys × 16"),
        ({"v": torch.randn(2, 2, 56, 16).half()}, "v: expected torch.float32 on cpu, got torch.float16"),
        ({"v": torch.randn(2, 2, 56, 16, device="meta")}, "on cpu, got torch.float32 on meta"),
        ({"q": torch.randn(2, 4, 40, 0), "k": torch.randn(2, 2, 56, 0), "v": torch.randn(2, 2, 56, 0)}, "head_dim"),
        ({"mask": torch.ones(2, 2)}, "is no BlockMaskTensor"),
        ({"mask": BlockMaskTensor.from_blocks(torch.ones(3, 2, dtype=torch.bool), BLOCK)}, "mask: expected one over"),
        ({"mask": some_mask((3,))}, "each of 4 query heads"),
        ({"mask": some_mask((1, 1, 1))}, "one for each head, or batch × heads of them, got a mask of 1 × 1 × 1 × 40"),
        ({"mask": BlockMaskTensor.from_blocks(torch.ones(5, 7, dtype=torch.bool), 8)}, "sides are .* not 8 × 8"),
        ({"elements": torch.ones(QUERIES, KEYS)}, "elements: expected torch.bool on cpu"),
        ({"elements": torch.ones(3, QUERIES, KEYS, dtype=torch.bool)}, "elements: expected a shape that broadcasts to"),
        ({"elements": PARTIAL}, "elements: partial blocks lie within the blocks of a mask"),
        ({"elements": PARTIAL, "mask": some_mask()}, "elements: expected partial blocks of a mask"),
        ({"slopes": SLOPES[:3]}, "slopes: expected one number for each of 4 query heads"),
        ({"slopes": SLOPES.clone().requires_grad_()}, "slopes: they have no gradient"),
        ({"slopes": SLOPES, "from_start": True}, "slopes: distances are those of the last query"),
        ({"slopes": [1.0] * 4}, "slopes: expected a torch.Tensor"),
        ({"sink_logits": SINK_LOGITS[None]}, "sink_logits: expected one number for each of 4 query heads"),
        ({"window": 0}, "window = 0 is below 1"),
        ({"sinks": 4}, "sinks: keys beside a window, and there is none"),
        ({"scale": math.inf}, "scale = inf"),
        ({"softcap": 0.0}, "softcap = 0 is not above 0"),
        ({"causal": "yes"}, "causal = 'yes' is neither True nor False"),
        ({"order": "bhtd"}, "order = 'bhtd' is none of heads, tokens"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(OperandError, match=words):
        bad(**changes)


def test_masks_elsewhere_are_refused() -> None:
    mask = some_mask()
    away = BlockMaskTensor(mask.shape, mask.block, mask.words.to("meta"))
    with pytest.raises(OperandError, match="mask: expected one on cpu, where q is, got one on meta"):
        bad(mask=away)


def test_a_checkpoint_computes_it_again(place: str) -> None:
    q, k, v = (torch.randn(1, 2, 32, 16, requires_grad=True) for _ in range(3))

    def attended(q: Any, k: Any, v: Any) -> Any:
        return block_attention(q, k, v, causal=True)

    checkpoint(attended, q, k, v, use_reentrant=False).sum().backward()
    found = [one.grad.clone() for one in (q, k, v)]
    for one in (q, k, v):
        one.grad = None
    attended(q, k, v).sum().backward()
    for one, grad in zip((q, k, v), found, strict=True):
        assert torch.equal(one.grad, grad)
