"""Masks for attention that are made where tensors lie, against what they are in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsegen.errors import OperandError  # noqa: E402
from sparsegen.integrations.torch import BlockMaskTensor, block_attention, masks  # noqa: E402
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks  # noqa: E402
from sparsegen.matrix.block_mask import grid  # noqa: E402
from sparsegen.matrix.partial_blocks import expanded as bits_expanded  # noqa: E402
from sparsegen.operators.attention.span import Band  # noqa: E402

BLOCK, SHAPE = (16, 32), (90, 140)  # 6 × 5 blocks, the last ones cut off


def places(partial: PartialBlocks) -> Any:
    """bool, one for each place: what the bits let live."""
    layout, lead = grid(partial.shape, partial.block), partial.numbers.shape[:-2]
    flat = partial.numbers.reshape(-1, layout.rows, layout.columns).numpy()
    found = [bits_expanded(one, partial.bits.numpy(), partial.block, partial.shape) for one in flat]
    return torch.from_numpy(np.stack(found)).reshape(*lead, *partial.shape)


def scores(*lead: int) -> Any:
    torch.manual_seed(1)
    return torch.randn(*lead, 6, 5)


def test_the_largest_of_each_row(place: str) -> None:
    given = scores(2, 3)
    given[0, 0, 1] = torch.tensor([-torch.inf, 2.0, torch.nan, -torch.inf, -torch.inf])
    mask = masks.topk_blocks(given, 2, BLOCK, SHAPE)
    assert (mask.lead, mask.shape, mask.block, mask.density) == ((2, 3), SHAPE, BLOCK, 0.4)
    live = mask.blocks()
    assert live[0, 0, 1].tolist() == [False, True, False, False, False], "what is -inf or NaN never lives"
    ordered = given.nan_to_num(nan=-9.0, neginf=-9.0).argsort(-1, descending=True)
    expected = torch.zeros_like(live).scatter(-1, ordered[..., :2], True)
    expected[0, 0, 1] = live[0, 0, 1]
    assert torch.equal(live, expected)
    assert torch.equal(masks.topk_blocks(given, 0.4, BLOCK, SHAPE).blocks(), live)


def test_the_largest_of_each_head(place: str) -> None:
    given = scores(3)
    live = masks.topk_blocks(given, 7, BLOCK, SHAPE, per="head").blocks()
    assert live.flatten(1).sum(1).tolist() == [7] * 3
    for head in range(3):
        assert given[head][live[head]].min() > given[head][~live[head]].max()
    assert masks.topk_blocks(given, 1e-3, 16, per="head").blocks().sum() == 3, "one at least"


@pytest.mark.parametrize("p", [0.3, 0.8, 1.0])
def test_the_fewest_blocks_of_a_share(p: float, place: str) -> None:
    given = scores(2) * 2
    given[0, 0] = -torch.inf
    given[1, 1, 3] = -torch.inf
    live = masks.top_p_blocks(given, p, BLOCK, SHAPE).blocks()
    assert not live[0, 0].any() and not live[1, 1, 3]
    for row, own in zip(given.flatten(0, 1)[1:], live.flatten(0, 1)[1:], strict=True):
        share = row.softmax(-1)
        assert share[own].sum() >= p - 1e-6 and share[own].sum() - share[own].min() < p
        assert not own.all() or not (~own).any() or share[own].min() >= share[~own].max()


def test_a_threshold(place: str) -> None:
    given = scores(2)
    assert torch.equal(masks.threshold_blocks(given, 0.3, BLOCK, SHAPE).blocks(), given >= 0.3)
    least = given.median(-1, keepdim=True).values
    assert torch.equal(masks.threshold_blocks(given, least, BLOCK, SHAPE).blocks(), given >= least)
    with pytest.raises(OperandError, match="least: expected what broadcasts"):
        masks.threshold_blocks(given, torch.zeros(4, 1, 1, 1), BLOCK, SHAPE)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooled_scores(pooling: str, place: str) -> None:
    torch.manual_seed(2)
    q, k = torch.randn(2, 4, 90, 8), torch.randn(2, 2, 140, 8).half()
    found = masks.pooled_scores(q, k, BLOCK, pooling=pooling, scale=0.5)
    assert found.shape == (2, 4, 6, 5) and found.dtype is torch.float32

    def pooled(part: Any) -> Any:
        return part.float().mean(0) if pooling == "mean" else part.float().amax(0)

    for b, h, r, c in ((0, 0, 0, 0), (1, 3, 5, 4), (0, 2, 3, 1)):
        one = pooled(q[b, h, 16 * r : 16 * r + 16]) @ pooled(k[b, h // 2, 32 * c : 32 * c + 32])
        torch.testing.assert_close(found[b, h, r, c], one * 0.5)
    torch.testing.assert_close(
        masks.pooled_scores(q, k, BLOCK, scale=8**-0.5), masks.pooled_scores(q, k, BLOCK)
    )


@pytest.mark.parametrize(
    "span",
    [
        {"causal": True},
        {"causal": True, "from_start": True},
        {"window": 20},
        {"causal": True, "window": 33, "sinks": 5},
        {"causal": True, "window": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [SHAPE, (140, 90)])
def test_windows(span: dict[str, Any], shape: tuple[int, int], place: str) -> None:
    mask = masks.window_blocks(shape, BLOCK, **span)
    band = Band.of(*shape, **{"window": 0} | span)
    seen = torch.from_numpy(band.seen(slice(0, shape[0]), shape[1]))
    assert torch.equal(mask.blocks(), masks.from_elements(seen, BLOCK).blocks())
    assert mask.density == pytest.approx(seen.float().mean().item())


def test_elements_of_blocks(place: str) -> None:
    elements = torch.from_numpy(np.random.default_rng(3).random((2, *SHAPE)) < 0.002)
    mask = masks.from_elements(elements, BLOCK)
    assert 0 < mask.blocks().float().mean() < 1
    for item, row, column in np.ndindex(2, 6, 5):
        tile = elements[item, 16 * row : 16 * row + 16, 32 * column : 32 * column + 32]
        assert mask.blocks()[item, row, column] == tile.any()


@pytest.mark.parametrize("batch", [0, 2])
def test_documents(batch: int, place: str) -> None:
    rows = [[0] * 30 + [1] * 20 + [4] * 40, [2] * 64 + [7] * 20 + [-1] * 6][: batch or 1]
    ids = torch.tensor(rows if batch else rows[0])
    mask, elements = masks.document_blocks(ids, 16)
    assert mask.lead == ((2, 1) if batch else ()) and mask.shape == (90, 90)
    q, k = (ids[:, None, :, None], ids[:, None, None]) if batch else (ids[:, None], ids)
    seen = (q == k) & (q >= 0)
    covered = masks.from_elements(seen, 16)
    assert not (covered.blocks() & ~mask.blocks()).any() and mask.blocks().float().mean() < 0.7
    assert torch.equal(places(elements), seen), "whatever mask lies over them"
    given = [torch.randn(batch or 1, 2, 90, 16, dtype=torch.float64) for _ in range(3)]
    out = block_attention(*given, mask, elements=elements, causal=True)
    for start, stop in ((0, 30), (30, 50), (50, 90)):
        alone = block_attention(*(t[:1, :, start:stop] for t in given), causal=True)
        torch.testing.assert_close(out[:1, :, start:stop], alone)
    assert not batch or not out[1, :, 84:].any(), "padding sees nothing"


def test_documents_of_whole_blocks_need_no_elements(place: str) -> None:
    ids = torch.tensor([3, 3, 5, 5, 5, 9]).repeat_interleave(16)
    mask, elements = masks.document_blocks(ids, 16)
    assert torch.equal(mask.expand(), ids[:, None] == ids)
    assert (elements.numbers[mask.blocks()] == -1).all(), "no block is partial"
    assert torch.equal(places(elements), mask.expand())


@pytest.mark.parametrize("batch", [0, 2])
def test_trees_of_drafts(batch: int, place: str) -> None:
    parents = torch.tensor([[-1, 0, 0, 1, 3, 4, 5, 2], [-1, -1, 0, 1, 1, 2, 3, 6]])
    given = parents if batch else parents[0]
    mask, elements = masks.tree_blocks(given, 24, 16)
    assert mask.shape == (8, 32) and mask.lead == ((2, 1) if batch else ())
    for item, tree in enumerate(parents.tolist()[: batch or 1]):
        own = elements[item, 0] if batch else elements
        for token in range(8):
            branch, at = set(), token
            while at >= 0:
                branch.add(24 + at)
                at = tree[at]
            assert set(own[token].nonzero()[:, 0].tolist()) == {*range(24), *branch}


def test_dilation_and_the_union_of_a_group(place: str) -> None:
    live = torch.zeros(4, 6, 5, dtype=torch.bool)
    live[0, 2, 2] = live[1, 0, 4] = live[3, 5, 0] = True
    mask = BlockMaskTensor.from_blocks(live, BLOCK, SHAPE, density=0.02)
    grown = masks.dilated(mask, (1, 0)).blocks()
    assert grown[0, :, 2].tolist() == [False, True, True, True, False, False] and grown[0].sum() == 3
    assert masks.dilated(mask, 1).blocks()[1].nonzero().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4]]
    union = masks.union_of_group(mask, 2)
    assert union.density == 0.04
    for head in range(4):
        assert torch.equal(union.blocks()[head], live[head // 2 * 2] | live[head // 2 * 2 + 1])
    with pytest.raises(OperandError, match="mask: expected a multiple of 3 heads, got a mask of 4 × 90"):
        masks.union_of_group(mask, 3)


def test_a_mask_of_scores_compiles_whole(place: str) -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        found = masks.pooled_scores(q, k, 16)
        mask = masks.topk_blocks(found, 2, 16) & masks.window_blocks((64, 64), 16, causal=True)
        return block_attention(q, k, v, mask, causal=True)

    q, k, v = (torch.randn(1, 2, 64, 16) for _ in range(3))
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), attend(q, k, v))


def window(size: int) -> Any:
    return masks.window_blocks(SHAPE, BLOCK, window=size)


def several(count: int) -> Any:
    return masks.topk_blocks(scores(count), 1, BLOCK, SHAPE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: masks.topk_blocks(torch.ones(3), 1, 16), "scores: expected ... × rows × columns"),
        (
            lambda: masks.topk_blocks(torch.ones(3, 4).long(), 1, 16),
            "scores: expected floating-point numbers",
        ),
        (lambda: masks.topk_blocks(torch.ones(3, 4), 5, 16), "keep = 5 is above 4"),
        (
            lambda: masks.topk_blocks(torch.ones(3, 4), 1.5, 16),
            "keep = 1.5: a share is above 0 and at most 1.0",
        ),
        (lambda: masks.topk_blocks(torch.ones(3, 4), 1, 16, per="tile"), "per = 'tile' is none of row, head"),
        (lambda: masks.top_p_blocks(torch.ones(3, 4), 0.0, 16), r"p = 0 is outside \(0, 1\]"),
        (
            lambda: masks.pooled_scores(torch.ones(1, 3, 4, 8), torch.ones(1, 2, 4, 8), 16),
            "a divisor of 3 heads",
        ),
        (
            lambda: masks.pooled_scores(torch.ones(1, 3, 4, 8), torch.ones(3, 4, 8), 16),
            "k: expected batch × heads",
        ),
        (lambda: masks.document_blocks(torch.ones(4), 16), "ids: expected integers, got torch.float32"),
        (
            lambda: masks.document_blocks(torch.ones(4).long(), 16, torch.ones(1, 4).long()),
            "key_ids: expected tokens",
        ),
        (
            lambda: masks.document_blocks(torch.ones(48).long(), 24),
            "block: partial blocks have sides that are multiples of 16, not 24 × 24",
        ),
        (
            lambda: masks.pooled_scores(torch.ones(1, 2, 4, 8), torch.ones(1, 2, 4, 8, device="meta"), 16),
            "k: expected it on cpu, got meta",
        ),
        (
            lambda: masks.from_counts(torch.ones(4).int(), torch.ones(4, 4, device="meta").int(), 1, (4, 4)),
            "indices: expected them on cpu, got meta",
        ),
        (
            lambda: window(3) & BlockMaskTensor(SHAPE, BLOCK, window(3).words.to("meta")),
            "mask: expected it on cpu, got meta",
        ),
        (
            lambda: BlockMaskTensor(SHAPE, BLOCK, window(3).words.expand(2, -1)) | several(3),
            "masks whose numbers broadcast can be put together, not a mask of 2 × 90",
        ),
        (lambda: masks.tree_blocks(torch.ones(4), 3, 16), "parents: expected integers"),
        (lambda: masks.tree_blocks(torch.ones(4).long(), -1, 16), "context = -1 is below 0"),
        (lambda: masks.from_elements(torch.ones(4, 4), 16), "elements: expected torch.bool"),
        (lambda: masks.window_blocks((64, 64), 16, sinks=3), "sinks: keys beside a window"),
        (lambda: masks.dilated(torch.ones(3, 3), 1), "is no BlockMaskTensor"),
    ],
)
def test_bad_input_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(OperandError, match=words):
        make()
