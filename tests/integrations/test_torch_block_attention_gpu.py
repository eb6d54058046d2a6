"""Attention with masks of blocks on a GPU: results, gradients, graphs whose masks change, whole compilation."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_database")]
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)
pytest.importorskip("pycuda")

from cuda_graphs import captured  # noqa: E402

from sparsegen.integrations.torch import BlockMaskTensor, block_attention, masks  # noqa: E402

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, BLOCK = 2, 4, 2, 320, 512, 64
REPLAYS = 1000
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def operands(dtype: Any, head_dim: int) -> list[Any]:
    torch.manual_seed(0)
    sizes = (HEADS, QUERIES), (KV_HEADS, KEYS), (KV_HEADS, KEYS)
    return [
        torch.randn(BATCH, *size, head_dim, device="cuda", dtype=dtype, requires_grad=True) for size in sizes
    ]


def some_live(seed: int) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = BATCH, HEADS, QUERIES // BLOCK, KEYS // BLOCK
    return torch.rand(shape, device="cuda", generator=generator) < 0.4


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("span", [{}, {"causal": True}, {"causal": True, "window": 100, "sinks": 9}], ids=str)
def test_results_and_gradients(span: dict[str, Any], dtype: Any, head_dim: int) -> None:
    given = operands(dtype, head_dim)
    mask = BlockMaskTensor.from_blocks(some_live(1), BLOCK)
    out, lse = block_attention(*given, mask, return_lse=True, **span)
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    right, right_lse = block_attention(*wide, mask, return_lse=True, **span)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(out.double(), right, **close)
    torch.testing.assert_close(lse.double(), right_lse, rtol=1e-4, atol=1e-4)
    seed = torch.randn_like(out)
    for ours, theirs in zip(
        torch.autograd.grad(out, given, seed), torch.autograd.grad(right, wide, seed.double()), strict=True
    ):
        assert (ours.double() - theirs).abs().max() <= 2 * TOLERANCE[dtype] * theirs.abs().max()


@pytest.mark.parametrize("block", [(16, 64), (32, 32), (16, 16)], ids=str)
def test_gradients_of_small_blocks(block: tuple[int, int]) -> None:
    """The graph's masks are united in it: replays follow the words."""
    given, generator = operands(torch.float16, 64), torch.Generator("cuda").manual_seed(3)
    seed = torch.randn_like(given[0])

    def mask() -> BlockMaskTensor:
        shape = BATCH, HEADS, QUERIES // block[0], KEYS // block[1]
        return BlockMaskTensor.from_blocks(torch.rand(shape, device="cuda", generator=generator) < 0.3, block)

    def step(tensors: list[Any], own: BlockMaskTensor) -> Any:
        return torch.autograd.grad(block_attention(*tensors, own, causal=True), tensors, seed.to(tensors[0]))

    held = mask()
    graph, results = captured(lambda: step(given, held))
    wide = [tensor.detach().double().requires_grad_() for tensor in given]
    for _ in range(3):
        other = mask()
        held.words.view(torch.int64).copy_(other.words.view(torch.int64))
        graph.replay()
        for ours, theirs in zip(results, step(wide, other), strict=True):
            assert (ours.double() - theirs).abs().max() <= 2 * TOLERANCE[torch.float16] * theirs.abs().max()


def test_a_graph_follows_the_mask_in_its_buffer() -> None:
    given = operands(torch.float16, 128)
    mask = BlockMaskTensor.from_blocks(some_live(0), BLOCK)
    seed = torch.randn_like(given[0])

    def step(own: BlockMaskTensor) -> tuple[Any, ...]:
        out = block_attention(*given, own, causal=True, deterministic=True)
        return out, *torch.autograd.grad(out, given, seed)

    graph, results = captured(lambda: step(mask))
    for number in range(REPLAYS):
        other = BlockMaskTensor.from_blocks(some_live(number), BLOCK)
        mask.words.view(torch.int64).copy_(other.words.view(torch.int64))
        graph.replay()
        torch.cuda.synchronize()
        for replayed, eager in zip(results, step(other), strict=True):
            assert torch.equal(replayed, eager), f"replay {number}"


def test_masks_of_scores_are_made_inside_of_a_graph() -> None:
    q, k, v = (tensor.detach() for tensor in operands(torch.float16, 64))

    def attend() -> Any:
        scores = masks.pooled_scores(q, k, BLOCK)
        return block_attention(q, k, v, masks.topk_blocks(scores, 3, BLOCK), causal=True)

    graph, out = captured(attend)
    for _ in range(3):
        q.normal_()
        k.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, attend())


def made_masks(scores: Any, ids: Any, parents: Any) -> dict[str, Any]:
    """Every way of making masks, from tensors whose contents may change."""
    mask = masks.topk_blocks(scores, 3, BLOCK)
    counts, indices = masks.to_counts(mask)
    shape = mask.shape
    q = scores.repeat_interleave(16, -1).half()
    found, partial = masks.document_blocks(ids, BLOCK)
    return {
        "largest": mask,
        "largest of heads": masks.topk_blocks(scores, 0.3, BLOCK, per="head"),
        "share": masks.top_p_blocks(scores, 0.7, BLOCK),
        "threshold": masks.threshold_blocks(scores, 0.1, BLOCK),
        "thresholds": masks.threshold_blocks(scores, scores.mean(-1, keepdim=True), BLOCK),
        "pooled": masks.topk_blocks(masks.pooled_scores(q, q, 2, pooling="max"), 0.5, BLOCK),
        "dilated": masks.dilated(mask, (1, 2)),
        "union": masks.union_of_group(mask, 2),
        "window": masks.window_blocks(shape, BLOCK, causal=True, window=100, sinks=70, device=ids.device)
        & mask,
        "documents": found,
        "places": masks.from_elements(ids[:, None] == ids, BLOCK),
        "numbers": partial.numbers,
        "tree": masks.tree_blocks(parents, 100, BLOCK)[0],
        "elements": masks.tree_blocks(parents, 100, BLOCK)[1],
        "listed": masks.from_counts(counts, indices, mask.block, shape) | mask,
    }


def test_every_way_of_making_masks_is_captured_and_equals_pytorch_s() -> None:
    """Graphs follow what lies in the tensors; the host's PyTorch makes the same masks."""
    scores = torch.zeros(BATCH, HEADS, 6, 10, device="cuda")
    ids, parents = (
        torch.zeros(600, dtype=torch.int64, device="cuda"),
        torch.zeros(40, dtype=torch.int64, device="cuda"),
    )
    graph, kept = captured(lambda: made_masks(scores, ids, parents))
    for seed in range(3):
        torch.manual_seed(seed)
        scores.normal_()
        ids.copy_(torch.randint(-1, 6, (600,)).sort().values)
        parents.copy_(torch.tensor([int(torch.randint(-1, max(1, at), ())) for at in range(40)]))
        parents[0] = -1
        graph.replay()
        torch.cuda.synchronize()
        right = made_masks(scores.cpu(), ids.cpu(), parents.cpu())
        for name, found in kept.items():
            own, other = (
                one.words.view(torch.int64) if isinstance(one, BlockMaskTensor) else one
                for one in (found, right[name])
            )
            assert torch.equal(own.cpu(), other), name


def test_compiled_whole() -> None:
    def attend(q: Any, k: Any, v: Any, live: Any) -> Any:
        return block_attention(q, k, v, BlockMaskTensor.from_blocks(live, BLOCK), causal=True).relu()

    compiled = torch.compile(attend, fullgraph=True)
    given = operands(torch.float16, 64)
    for seed in (1, 2):
        out, right = compiled(*given, some_live(seed)), attend(*given, some_live(seed))
        torch.testing.assert_close(out, right)
        for ours, theirs in zip(
            torch.autograd.grad(out.sum(), given), torch.autograd.grad(right.sum(), given), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
