"""Masks of blocks as tensors, made by PyTorch's host functions and by the kernels in the emulator."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from call_costs import steps_of  # noqa: E402
from torch.nn.attention import flex_attention  # noqa: E402

from sparsegen.errors import MatrixError, OperandError  # noqa: E402
from sparsegen.integrations.torch import (  # noqa: E402
    BlockMaskTensor,
    draw_block_mask,
    dsd,
    flex_elements,
    from_counts,
    from_flex,
    from_torch_bsr,
    partial_blocks_from_flex,
    sdd,
    to_counts,
    to_flex,
    to_torch_bsr,
)
from sparsegen.masks import BlockMask, Drawn, MaskDraw  # noqa: E402
from sparsegen.matrix import block_mask_formats  # noqa: E402
from sparsegen.matrix.block_mask_draw import draw_blocks  # noqa: E402

LIVE = np.random.default_rng(0).random((37, 70)) < 0.4
SHAPE, BLOCK = (147, 140), (4, 2)


def tensor() -> BlockMaskTensor:
    return BlockMaskTensor.from_blocks(torch.from_numpy(LIVE), BLOCK, SHAPE)


def test_bools(place: str) -> None:
    host = BlockMask.from_blocks(LIVE, BLOCK, SHAPE)
    mask = tensor()
    np.testing.assert_array_equal(mask.words.numpy(), host.words)
    np.testing.assert_array_equal(mask.blocks().numpy(), LIVE)
    np.testing.assert_array_equal(mask.expand().numpy(), host.expand())
    np.testing.assert_array_equal(mask.transposed().words.numpy(), host.transposed().words)
    np.testing.assert_array_equal(BlockMaskTensor.from_host(mask.to_host()).words.numpy(), host.words)


@pytest.mark.parametrize("drawn", Drawn)
def test_drawn_by_a_state(place: str, drawn: Drawn) -> None:
    state = torch.tensor([-5, 2**33], dtype=torch.int64)
    for step in range(2**33, 2**33 + 3):
        mask = draw_block_mask(SHAPE, BLOCK, 0.3, drawn, state=state)
        expected = draw_blocks(mask.layout, MaskDraw(0.3, drawn), 2**64 - 5, step)
        np.testing.assert_array_equal(mask.to_host().blocks(), expected)
    assert state.tolist() == [-5, 2**33 + 3]


def test_one_number_for_both_sides_of_a_block() -> None:
    assert BlockMaskTensor.from_blocks(torch.ones(2, 3, dtype=torch.bool), 16).block == (16, 16)
    assert draw_block_mask((32, 48), 16, 0.5).block == (16, 16)


def test_drawn_by_pytorch_s_generator(place: str) -> None:
    torch.manual_seed(3)
    first, second = (draw_block_mask(SHAPE, BLOCK, 0.5) for _ in range(2))
    torch.manual_seed(3)
    again = draw_block_mask(SHAPE, BLOCK, 0.5)
    assert torch.equal(first.blocks(), again.blocks()) and not torch.equal(first.blocks(), second.blocks())


def test_compiled_whole(place: str) -> None:
    def masked(x: Any) -> Any:
        mask = draw_block_mask((64, 64), (16, 16), 0.5, device=x.device)
        remade = BlockMaskTensor.from_blocks(mask.blocks(), (16, 16))
        return torch.where(remade.expand(), x, 0), mask.words

    compiled = torch.compile(masked, fullgraph=True, backend="aot_eager")
    y, words = compiled(torch.ones(64, 64))
    live = BlockMaskTensor((64, 64), (16, 16), words).expand()
    assert torch.equal(y != 0, live) and 0 < live.sum() < 64 * 64
    assert not torch.equal(compiled(torch.ones(64, 64))[0], y), "each call draws anew"


def test_operators_are_what_they_say(place: str) -> None:
    torch.library.opcheck(torch.ops.sparsegen.pack_block_mask, (torch.from_numpy(LIVE),))
    state = torch.tensor([1, 2], dtype=torch.int64)
    torch.library.opcheck(torch.ops.sparsegen.draw_block_mask, (state, 5, 70, 0.5, "exact_rows"))
    operators, words = torch.ops.sparsegen, tensor().words
    scores, ids = torch.randn(2, 5, 70), torch.arange(70) // 9
    counts, indices = (part.int() for part in to_counts(tensor()))
    torch.library.opcheck(operators.pack_largest_blocks, (scores, "rows", 3))
    torch.library.opcheck(operators.pack_share_of_rows, (scores, 0.5))
    torch.library.opcheck(operators.pack_from_threshold, (scores, scores[:, :1], 0.0))
    torch.library.opcheck(operators.pack_dilated_union, (words[None], 37, 70, 1, 2, 1))
    torch.library.opcheck(operators.pack_both_masks, (words, words[None], 37, 70, True))
    torch.library.opcheck(operators.pack_listed_blocks, (counts, indices, None, None, 70))
    torch.library.opcheck(operators.pack_window, ([90, 140, 16, 32, -9, 0, 1], torch.device("cpu")))
    torch.library.opcheck(operators.mark_branches, (torch.arange(-1, 6), 9))
    q, k = torch.randn(1, 4, 40, 8), torch.randn(1, 2, 50, 8)
    torch.library.opcheck(operators.pooled_block_scores, (q, k, 16, 16, "max", 0.5))
    # Bits of blocks without partial places are not written.
    kinds = "test_schema", "test_autograd_registration"
    torch.library.opcheck(operators.document_blocks, (ids, ids, 16, 16), test_utils=kinds)
    torch.library.opcheck(operators.mark_places, (ids[:, None] == ids, 16, 16, True))


def test_bsr() -> None:
    mask = BlockMaskTensor.from_blocks(torch.from_numpy(LIVE), BLOCK)
    bsr = to_torch_bsr(mask)
    assert torch.equal(bsr.to_dense() == 1, mask.expand())
    np.testing.assert_array_equal(from_torch_bsr(bsr).words.numpy(), mask.words.numpy())
    with pytest.raises(MatrixError, match="do not divide 147 × 140; pad it to 148 × 140"):
        to_torch_bsr(tensor())
    with pytest.raises(MatrixError, match=r"got torch.strided of shape \(4, 4\); use .to_sparse_bsr"):
        from_torch_bsr(torch.ones(4, 4))


def test_counts_and_indices(place: str) -> None:
    mask = tensor()
    counts, indices = to_counts(mask)
    expected = block_mask_formats.to_counts(mask.to_host())
    for found, right in zip((counts, indices), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), right)
    unused = torch.where(torch.arange(70) < counts[:, None], indices, -3)
    np.testing.assert_array_equal(from_counts(counts, unused, BLOCK, SHAPE).words.numpy(), mask.words.numpy())
    most = int(counts.max())
    few = from_counts(counts, indices[:, :most], BLOCK, SHAPE)
    assert most < 70 and torch.equal(few.words, mask.words), "no place for what no row needs"
    with pytest.raises(MatrixError, match=r"37 × 70 blocks need .* got shapes \(37,\) and \(37, 71\)"):
        from_counts(counts, torch.nn.functional.pad(indices, (0, 1)), BLOCK, SHAPE)


def several() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).random((2, 3, 37, 70)) < 0.4)


def test_several_masks_are_made_together(place: str) -> None:
    live = several()
    masks = BlockMaskTensor.from_blocks(live, BLOCK, SHAPE)
    assert masks.lead == (2, 3) and torch.equal(masks.blocks(), live)
    for item in np.ndindex(2, 3):
        one = BlockMask.from_blocks(live[item].numpy(), BLOCK, SHAPE)
        np.testing.assert_array_equal(masks[item].words.numpy(), one.words)
        np.testing.assert_array_equal(masks.transposed()[item].words.numpy(), one.transposed().words)
        np.testing.assert_array_equal(masks.expand()[item].numpy(), one.expand())
    assert masks[1].lead == (3,)
    with pytest.raises(OperandError, match=r"mask: a mask of the host is one, and these are 2 × 3; take one"):
        masks.to_host()
    with pytest.raises(OperandError, match="there are 2 dimensions in front"):
        masks[0, 1, 2]
    x = torch.randn(*SHAPE)
    with pytest.raises(OperandError, match="mask: expected one over 147 × 140"):
        dsd(x, x, BlockMaskTensor.from_blocks(torch.ones(2, 10, 9, dtype=torch.bool), 16, SHAPE))


def test_masks_put_together(place: str) -> None:
    live = several()
    first, second = (BlockMaskTensor.from_blocks(one, BLOCK, SHAPE) for one in (live[0], live[1, 0]))
    assert torch.equal((first | second).blocks(), live[0] | live[1, 0])
    assert torch.equal((first & second).blocks(), live[0] & live[1, 0])
    with pytest.raises(
        OperandError, match="masks of one shape and block can be put together, not a mask of 3 × 147"
    ):
        first | BlockMaskTensor.from_blocks(live[0, 0], BLOCK)


def test_formats_of_several_masks(place: str) -> None:
    masks = BlockMaskTensor.from_blocks(several(), (16, 32))
    counts, indices = to_counts(masks)
    assert counts.shape == (2, 3, 37) and indices.shape == (2, 3, 37, 70)
    assert torch.equal(from_counts(counts, indices, masks.block, masks.shape).words, masks.words)
    flex = to_flex(masks)
    assert torch.equal(flex.to_dense().bool(), masks.blocks())
    assert torch.equal(from_flex(flex, allow_partial=True).words, masks.words)
    assert torch.equal(from_flex(flex, (1, 2), allow_partial=True).words, masks[1, 2].words)
    assert torch.equal(to_flex(masks[1]).to_dense()[0].bool(), masks[1].blocks())
    with pytest.raises(OperandError, match="a mask of the host is one, and these are 2 × 3"):
        to_torch_bsr(masks)
    with pytest.raises(OperandError, match="FlexAttention takes batch × heads of masks"):
        to_flex(BlockMaskTensor(masks.shape, masks.block, masks.words[None]))


@pytest.mark.parametrize("heads", [None, 3])
def test_nothing_of_flex_attention_s_masks_is_lost(heads: int | None) -> None:
    def seen(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & ((q + h) % 5 != kv % 5)

    flex = flex_attention.create_block_mask(seen, None, heads, 200, 300, device="cpu", BLOCK_SIZE=(32, 64))
    partial, whole = partial_blocks_from_flex(flex), from_flex(flex, allow_partial=True).expand()
    b, h, q, kv = torch.meshgrid(*map(torch.arange, (1, heads or 1, 200, 300)), indexing="ij")
    elements = seen(b, h, q, kv).reshape((200, 300) if heads is None else (1, heads, 200, 300))
    assert torch.equal(flex_elements(flex), elements)
    for head in range(heads or 1):
        own = whole[0, head] if heads else whole
        assert torch.equal(
            partial.rows(0, head, slice(0, 200)) & own, elements[0, head] if heads else elements
        )
    assert torch.equal(partial.numbers, partial_blocks_from_flex(flex, room=len(partial.bits) + 1).numbers)
    with pytest.raises(RuntimeError, match="more than 3 blocks are partial"):
        partial_blocks_from_flex(flex, room=3)
    if heads:
        assert torch.equal(flex_elements(flex, (0, 2)), elements[0, 2])
    causal = flex_attention.create_block_mask(
        lambda b, h, q, kv: q >= kv, None, None, 256, 256, device="cpu", BLOCK_SIZE=64
    )
    assert causal.full_kv_num_blocks.sum() == 6
    assert (partial_blocks_from_flex(causal).numbers >= 0).sum() == 4
    assert torch.equal(flex_elements(causal), torch.ones(256, 256, dtype=torch.bool).tril())


def test_flex_attention() -> None:
    mask = BlockMaskTensor.from_blocks(torch.from_numpy(LIVE[:, :37]), (16, 16))
    flex = to_flex(mask)
    assert torch.equal(flex.to_dense()[0, 0].bool(), mask.blocks())
    np.testing.assert_array_equal(from_flex(flex, allow_partial=True).words.numpy(), mask.words.numpy())
    q = torch.randn(1, 1, 592, 16)
    bias = torch.zeros(592, 592).masked_fill(~mask.expand(), -torch.inf)
    expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=bias)
    torch.testing.assert_close(flex_attention.flex_attention(q, q, q, block_mask=flex), expected)


def test_masks_that_flex_attention_makes(place: str) -> None:
    causal = flex_attention.create_block_mask(
        lambda b, h, q, kv: q >= kv, 2, 3, 200, 300, device="cpu", BLOCK_SIZE=(32, 64)
    )
    with pytest.raises(MatrixError, match="may have partial blocks"):
        from_flex(causal)
    mask = from_flex(causal, (1, 2), allow_partial=True)
    assert (mask.shape, mask.block) == ((200, 300), (32, 64))
    rows, columns = np.meshgrid(np.arange(7) * 32, np.arange(5) * 64, indexing="ij")
    np.testing.assert_array_equal(mask.blocks().numpy(), columns <= np.minimum(rows + 31, 199))
    with pytest.raises(MatrixError, match=r"item \(2, 0\) is outside the mask's 2 × 3"):
        from_flex(causal, (2, 0))
    with pytest.raises(MatrixError, match="expected FlexAttention's BlockMask, got Tensor"):
        from_flex(torch.ones(3, 3))
    listed = flex_attention.BlockMask.from_kv_blocks(
        torch.tensor([[[1, 2]]], dtype=torch.int32),
        torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32),
        BLOCK_SIZE=16,
    )
    assert from_flex(listed).blocks().tolist() == [[False, True], [True, True]]


def test_a_mask_without_a_live_block(place: str) -> None:
    mask = BlockMaskTensor.from_host(BlockMask.from_blocks(np.zeros((4, 4), np.bool_), (16, 16)))
    assert mask.density == 1 / 16
    x = torch.randn(64, 64)
    assert not dsd(x, x, mask).any() and not sdd(x, x, mask).any()


def test_bad_masks() -> None:
    with pytest.raises(OperandError, match=r"buffer of \d+ torch.uint64, got torch.int64"):
        BlockMaskTensor(SHAPE, BLOCK, tensor().words.view(torch.int64))
    with pytest.raises(MatrixError, match=r"a matrix of bools, got torch\.float32"):
        BlockMaskTensor.from_blocks(torch.ones(3, 3), BLOCK)
    with pytest.raises(MatrixError, match="are 37 × 70 blocks, got 37 × 69"):
        BlockMaskTensor.from_blocks(torch.from_numpy(LIVE[:, :69]), BLOCK, SHAPE)
    with pytest.raises(
        OperandError, match=r"a seed and a step: 2 × torch.int64, got torch.int64 of shape \(3,\)"
    ):
        draw_block_mask(SHAPE, BLOCK, 0.5, state=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(MatrixError, match="drawn = 'some' is none of bernoulli, exact_rows, exact_whole"):
        draw_block_mask((64, 64), (16, 16), 0.5, "some")
    with pytest.raises(MatrixError, match="share of blocks to drop"):
        draw_block_mask(SHAPE, BLOCK, 1.0)


def test_pickles_and_copies(tmp_path: Path) -> None:
    mask = tensor()
    torch.save(mask, tmp_path / "mask.pt")
    loaded = torch.load(tmp_path / "mask.pt", weights_only=False)
    for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), loaded):
        assert (other.shape, other.block, other.density) == (mask.shape, mask.block, mask.density)
        assert torch.equal(other.words, mask.words)


def test_a_mask_like_one_before_works_nothing_out(place: str) -> None:
    """Layout, sizes and density of a drawn mask are known from the call before."""
    state = torch.tensor([1, 0])
    steps = steps_of(lambda: draw_block_mask((64, 96), (16, 32), 0.5, state=state)).python
    assert steps["mask_of"] == 1 and not steps["grid"] and not steps["density"] and not steps["row_order_at"]


def test_no_masks_have_no_blocks() -> None:
    assert BlockMaskTensor.from_blocks(torch.zeros(0, 3, 5, dtype=torch.bool), 16).blocks().shape == (0, 3, 5)


def test_an_ellipsis_stands_for_dimensions_in_front() -> None:
    several = BlockMaskTensor.from_blocks(torch.rand(2, 4, 3, 5) < 0.5, 16)
    assert torch.equal(several[..., 1].blocks(), several.blocks()[:, 1])
    assert torch.equal(several[1, ...].blocks(), several.blocks()[1])
    with pytest.raises(OperandError, match="2 dimensions in front"):
        several[0, ..., 1, 2]


def test_bools_are_no_mask() -> None:
    with pytest.raises(OperandError, match="its from_blocks makes one of bools of blocks"):
        dsd(torch.ones(16, 16), torch.ones(8, 16), torch.ones(1, 1, dtype=torch.bool))


def test_a_longer_row_of_a_mask_of_the_host_is_expected() -> None:
    live = np.eye(16, dtype=np.bool_)
    assert BlockMaskTensor.from_host(BlockMask.from_blocks(live, (64, 64))).longest == 0
    live[3] = True
    mask = BlockMaskTensor.from_host(BlockMask.from_blocks(live, (64, 64)))
    assert mask.longest == pickle.loads(pickle.dumps(mask)).longest == mask[...].longest == 1
    with pytest.raises(OperandError, match=r"longest = 2 is outside \[0, 1\]"):
        BlockMaskTensor.from_blocks(torch.from_numpy(live), 64, longest=2)
