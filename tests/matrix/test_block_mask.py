"""Masks of blocks: the buffer that kernels walk, against what it says bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.errors import MatrixError
from sparsegen.matrix.bits import packed_rows, unpacked_rows
from sparsegen.matrix.block_mask import BlockMask, BlockMaskLayout
from sparsegen.system.numpy_types import Array

GRIDS = [(1, 1), (3, 5), (2, 64), (65, 3), (64, 128), (70, 130)]


def some(rows: int, columns: int, density: float = 0.4) -> Array:
    return np.asarray(np.random.default_rng(rows * 1000 + columns).random((rows, columns)) < density)


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_the_buffer_word_by_word(rows: int, columns: int) -> None:
    blocks = some(rows, columns)
    mask = BlockMask.from_blocks(blocks, (4, 2))
    at = 0
    for side in (blocks, blocks.T):
        counts = [int(row.sum()) for row in side]
        order = sorted(range(len(counts)), key=lambda r: (-counts[r], r))
        across = -(-side.shape[1] // 64)
        for rank, row in enumerate(order):
            for word in range(across):
                bits = sum(
                    1 << b for b in range(64) if word * 64 + b < side.shape[1] and side[row, word * 64 + b]
                )
                assert int(mask.words[at + rank * across + word]) == bits
        at += len(order) * across
        places = -(-len(order) // 2)
        assert mask.words[at : at + places].view(np.int32)[: len(order)].tolist() == order
        at += places
    assert at == mask.words.size == mask.layout.words


@pytest.mark.parametrize(("rows", "columns"), GRIDS)
def test_the_way_there_and_back(rows: int, columns: int) -> None:
    blocks = some(rows, columns)
    mask = BlockMask.from_blocks(blocks, (3, 2))
    assert np.array_equal(mask.blocks(), blocks)
    assert mask.density == blocks.mean() and mask.live_blocks == blocks.sum()
    assert np.array_equal(mask.transposed().blocks(), blocks.T)
    assert np.array_equal(mask.transposed().transposed().words, mask.words)
    assert np.array_equal(mask.transposed().words, BlockMask.from_blocks(blocks.T, (2, 3)).words)
    assert np.array_equal(unpacked_rows(packed_rows(blocks), columns), blocks)


def test_a_layout_counts_words() -> None:
    layout = BlockMaskLayout(3, 130)
    assert (layout.row_words, layout.column_words) == (3, 1)
    assert (layout.row_order_at, layout.column_bits_at) == (9, 11)
    assert (layout.column_order_at, layout.words, layout.nbytes) == (141, 206, 1648)
    assert layout.transposed().column_bits_at == layout.words - layout.column_bits_at


def test_blocks_are_cut_off_at_the_edges() -> None:
    blocks = some(3, 4)
    mask = BlockMask.from_blocks(blocks, (4, 3), shape=(9, 11))
    elements = mask.expand()
    assert elements.shape == (9, 11)
    assert all(elements[i, j] == blocks[i // 4, j // 3] for i in range(9) for j in range(11))
    assert np.array_equal(BlockMask.from_elements(elements, (4, 3)).words, mask.words)


def test_a_block_that_is_live_in_part() -> None:
    elements = np.zeros((8, 8), dtype=bool)
    elements[:4, :4] = True
    elements[5, 6] = True
    with pytest.raises(
        MatrixError, match=r"1 blocks of 4 × 4 are live in part, the first is \(1, 1\).*allow_partial"
    ):
        BlockMask.from_elements(elements, (4, 4))
    mask = BlockMask.from_elements(elements, (4, 4), allow_partial=True)
    assert mask.blocks().tolist() == [[True, False], [False, True]]
    assert BlockMask.from_elements(elements, (1, 1)).live_blocks == 17


@pytest.mark.parametrize("full", [False, True])
def test_empty_and_full_masks(full: bool) -> None:
    mask = BlockMask.from_blocks(np.full((5, 70), full), (2, 2))
    assert mask.density == float(full) and mask.expand().all() == full == mask.expand().any()


def test_a_buffer_is_checked() -> None:
    mask = BlockMask.from_blocks(some(5, 7), (2, 2))
    with pytest.raises(
        MatrixError, match=r"5 × 7 blocks \(10 × 14 .* is a buffer of 19 uint64, got uint64 of .*18"
    ):
        BlockMask(mask.shape, mask.block, mask.words[1:])
    with pytest.raises(MatrixError, match="got float64"):
        BlockMask(mask.shape, mask.block, mask.words.astype(np.float64))
    for at, what in ((0, "contradict"), (5, "no permutation"), (8, "contradict"), (15, "contradict")):
        words = mask.words.copy()
        words[at] ^= np.uint64(1)
        with pytest.raises(MatrixError, match=what):
            BlockMask(mask.shape, mask.block, words)
    past_the_end = mask.words.copy()
    past_the_end[0] |= np.uint64(1 << 40)
    with pytest.raises(MatrixError, match="contradict"):
        BlockMask(mask.shape, mask.block, past_the_end)
    assert not mask.words.flags.writeable


def test_one_number_for_both_sides_of_a_block() -> None:
    live = np.eye(3, dtype=bool)
    assert BlockMask.from_blocks(live, 16).block == (16, 16)
    assert BlockMask.from_elements(live.repeat(4, 0).repeat(4, 1), 4).block == (4, 4)


def test_bad_masks() -> None:
    with pytest.raises(MatrixError, match="matrix of bools, got float64"):
        BlockMask.from_blocks(np.ones((2, 2)), (4, 4))
    with pytest.raises(MatrixError, match=r"at least one block, got shape \(0, 3\)"):
        BlockMask.from_blocks(np.ones((0, 3), dtype=bool), (4, 4))
    with pytest.raises(MatrixError, match=r"block = 0 × 4 is below 1 × 1"):
        BlockMask.from_elements(np.ones((8, 8), dtype=bool), (0, 4))
    with pytest.raises(MatrixError, match=r"9 × 8 elements in blocks of 4 × 4 are 3 × 2 blocks, got 2 × 2"):
        BlockMask.from_blocks(np.ones((2, 2), dtype=bool), (4, 4), shape=(9, 8))
