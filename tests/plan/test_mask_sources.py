"""Masks that one launch makes of scores, lists, other masks and places are what NumPy says, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.errors import MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import BlockMaskLayout, grid, packed
from sparsegen.operators.attention.span import Band
from sparsegen.plan import mask_sources
from sparsegen.plan.block_masks import BlockMaskMaker, scratch_words
from sparsegen.plan.mask_sources import Largest, MaskSource
from sparsegen.plan.partial_blocks import bind_branches, bind_places
from sparsegen.system.numpy_types import Array

LAYOUTS = [(1, 1), (3, 5), (40, 130), (33, 300), (130, 530)]  # rows held in registers, and read again


def made(executor: Executor, source: MaskSource, masks: int, layout: BlockMaskLayout, *given: Array) -> Array:
    """The buffers of the masks, masks × words, of arrays that are uploaded; an empty one stands for none."""
    uploaded = [executor.upload(array) if array.size else None for array in given]
    found, words = executor.allocate(masks * layout.nbytes), np.empty((masks, layout.words), np.uint64)
    executor.fill(found, 0xFF)
    launch = BlockMaskMaker(layout, executor, masks).bind(source)
    for _ in range(2):  # the second one takes the other scratch memory
        launch(0, *(0 if buffer is None else buffer.address for buffer in uploaded), found.address)
    executor.synchronize()
    executor.download(found, words)
    return words


def words_of(live: Array) -> Array:
    """The buffers of masks × rows × columns of bools."""
    return np.stack([packed(one) for one in live])


def drawn(masks: int, rows: int, columns: int, share: float, seed: int) -> Array:
    """Bools, masks × rows × columns of blocks."""
    live: Array = np.random.default_rng(seed).random((masks, rows, columns)) < share
    return live


def scored(masks: int, rows: int, columns: int) -> Array:
    """Scores among which are equal ones, infinite ones and NaN."""
    rng = np.random.default_rng(rows + columns)
    scores = rng.integers(-9, 10, (masks, rows, columns)).astype(np.float32) * np.float32(0.25)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    scores[rng.random(scores.shape) < 0.1] = np.nan
    return scores


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
@pytest.mark.parametrize("share", [0.3, 0.9, 1.0])
def test_a_share_of_rows(executor: Executor, rows: int, columns: int, share: float) -> None:
    """Powers of two sum without rounding: a row's fewest blocks are known exactly."""
    rng = np.random.default_rng(columns)
    weights = 2.0 ** -rng.integers(0, 6, (2, rows, columns)) * (rng.random((2, rows, columns)) < 0.8)
    with np.errstate(divide="ignore"):
        scores = np.log(weights).astype(np.float32)
    order = np.argsort(-weights, axis=-1, kind="stable")
    ordered = np.take_along_axis(weights, order, -1)
    before, wanted = ordered.cumsum(-1) - ordered, share * weights.sum(-1, keepdims=True)
    is_clear = (np.abs(before - wanted) > 1e-5 * wanted).all(-1)  # no sum is at the share but for rounding
    expected = np.zeros(weights.shape, bool)
    np.put_along_axis(expected, order, (before < wanted) & (ordered > 0), -1)
    layout = BlockMaskLayout(rows, columns)
    found = made(executor, mask_sources.share_of_rows(share), 2, layout, scores)
    for words, live, weight, clear in zip(found, expected, weights, is_clear, strict=True):
        own = blocks(words, layout)
        np.testing.assert_array_equal(own[clear], live[clear])
        assert (np.abs((own != live) * weight).sum(-1) <= weight.max(-1)).all()
        np.testing.assert_array_equal(words, packed(own))
    if share < 1:
        assert is_clear.mean() > 0.5 or rows * columns < 20


def blocks(words: Array, layout: BlockMaskLayout) -> Array:
    """Bools of one buffer."""
    bits = np.unpackbits(words[: layout.row_order_at].view(np.uint8), bitorder="little")
    ranked = bits.reshape(layout.rows, -1)[:, : layout.columns].astype(bool)
    order = words[layout.row_order_at : layout.column_bits_at].view(np.int32)[: layout.rows]
    found = np.empty_like(ranked)
    found[order] = ranked
    return found


def test_an_infinite_score_is_all_of_its_row(executor: Executor) -> None:
    scores = np.array([[[3, np.inf, np.inf, 1], [-np.inf] * 4, [np.nan, 2, -np.inf, 2]]], np.float32)
    found = made(executor, mask_sources.share_of_rows(0.5), 1, BlockMaskLayout(3, 4), scores)
    expected = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]], bool)
    np.testing.assert_array_equal(found[0], packed(expected))


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
def test_thresholds(executor: Executor, rows: int, columns: int) -> None:
    layout, scores = BlockMaskLayout(rows, columns), scored(2, rows, columns)
    own = np.random.default_rng(4).normal(size=scores.shape).astype(np.float32)
    none = np.empty(0, np.float32)
    for thresholds, least in ((none, 0.25), (none, -1e30), (own, 9.0)):
        found = made(executor, mask_sources.from_threshold(least), 2, layout, scores, thresholds)
        expected = (scores >= (thresholds if thresholds.size else np.float32(least))) & (scores > -np.inf)
        np.testing.assert_array_equal(found, words_of(expected))


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
def test_largest_of_long_rows(executor: Executor, rows: int, columns: int) -> None:
    layout, scores, live = BlockMaskLayout(rows, columns), scored(2, rows, columns), -(-columns // 3)
    found = made(executor, mask_sources.largest(Largest.ROWS, live), 2, layout, scores)
    known = np.nan_to_num(scores, nan=-np.inf, neginf=-np.inf)
    order = np.argsort(-known, axis=-1, kind="stable")[..., :live]
    expected = np.zeros(scores.shape, bool)
    np.put_along_axis(expected, order, True, -1)
    np.testing.assert_array_equal(found, words_of(expected & (known > -np.inf)))


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
@pytest.mark.parametrize(("group", "by"), [(1, (1, 1)), (2, (0, 0)), (4, (2, 70)), (1, (40, 0))])
def test_unions_and_dilation(
    executor: Executor, rows: int, columns: int, group: int, by: tuple[int, int]
) -> None:
    layout, live = BlockMaskLayout(rows, columns), drawn(4, rows, columns, 0.01, 7)
    source = mask_sources.dilated_union(group, by)
    found = made(executor, source, 4, layout, words_of(live))
    shared = live.reshape(-1, group, rows, columns).any(1).repeat(group, 0)
    expected = np.zeros_like(live)
    for mask, row, column in np.argwhere(shared):
        near_rows = slice(max(0, row - by[0]), row + by[0] + 1)
        expected[mask, near_rows, max(0, column - by[1]) : column + by[1] + 1] = True
    np.testing.assert_array_equal(found, words_of(expected))


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
def test_two_masks(executor: Executor, rows: int, columns: int) -> None:
    layout = BlockMaskLayout(rows, columns)
    left, right = drawn(3, rows, columns, 0.3, 1), drawn(3, rows, columns, 0.6, 2)
    for unites, expected in ((True, left | right), (False, left & right)):
        found = made(executor, mask_sources.both(unites=unites), 3, layout, words_of(left), words_of(right))
        np.testing.assert_array_equal(found, words_of(expected))


@pytest.mark.parametrize(("rows", "columns"), LAYOUTS)
def test_lists(executor: Executor, rows: int, columns: int) -> None:
    """Counts may be larger than lists, and columns that there are not are left out."""
    layout, rng = BlockMaskLayout(rows, columns), np.random.default_rng(5)
    slots, more_slots = max(1, columns // 2), columns
    counts = rng.integers(0, slots + 2, (2, rows), np.int32)
    listed = rng.integers(-2, columns + 2, (2, rows, slots), np.int32)
    more_counts = rng.integers(0, 3, (2, rows), np.int32)
    more = np.argsort(rng.random((2, rows, more_slots)), axis=-1).astype(np.int32)
    none = np.empty(0, np.int32)
    expected = np.zeros((2, rows, columns), bool)
    for mask, row in np.ndindex(2, rows):
        own = listed[mask, row, : counts[mask, row]]
        expected[mask, row, own[(own >= 0) & (own < columns)]] = True
    found = made(executor, mask_sources.listed(slots, 0), 2, layout, counts, listed, none, none)
    np.testing.assert_array_equal(found, words_of(expected))
    for mask, row in np.ndindex(2, rows):
        expected[mask, row, more[mask, row, : more_counts[mask, row]]] = True
    source = mask_sources.listed(slots, more_slots)
    found = made(executor, source, 2, layout, counts, listed, more_counts, more)
    np.testing.assert_array_equal(found, words_of(expected))


@pytest.mark.parametrize("shape", [(90, 140), (140, 90), (1, 700), (700, 3)])
def test_windows(executor: Executor, shape: tuple[int, int]) -> None:
    block, layout = (16, 8), grid(shape, (16, 8))
    for band in (Band.of(*shape, causal=True), Band.of(*shape, causal=True, window=33, sinks=5), Band(-7, 9)):
        seen = band.seen(slice(0, shape[0]), shape[1])
        whole = np.zeros((layout.rows * 16, layout.columns * 8), bool)
        whole[: shape[0], : shape[1]] = seen
        expected = whole.reshape(layout.rows, 16, layout.columns, 8).any((1, 3))
        found = made(executor, mask_sources.window(shape, block, band), 1, layout)
        np.testing.assert_array_equal(found[0], packed(expected))


def test_too_many_masks_are_refused(executor: Executor) -> None:
    with pytest.raises(MatrixError, match="at most 65535 rows of blocks and masks"):
        bind_places(executor, (64, 64), (64, 64), 65536)


def test_branches_end_where_parents_go_in_circles(executor: Executor) -> None:
    parents = executor.upload(np.array([1, 0, 9, -1], np.int64))
    found, places = executor.allocate(4 * 6), np.empty((4, 6), np.uint8)
    bind_branches(executor, 4, 2, 1)(0, parents.address, found.address)
    executor.synchronize()
    executor.download(found, places)
    own = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(places, [[1, 1, *row] for row in own])


SANITIZED: dict[str, tuple[Sequence[int], Sequence[str]]] = {
    "share_of_rows": ([0x3F000000], ["scores"]),
    "from_threshold": ([0], ["scores", "scores"]),
    "dilated_union": ([1, 2, 40], ["mask"]),
    "both_masks": ([1], ["mask", "mask"]),
    "listed": ([3, 2], ["counts", "three", "counts", "two"]),
    "window": ([70, 300, 2, 2, -9, 9, 1], []),
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("entry", SANITIZED)
def test_nothing_out_of_bounds(emulator_toolchain: EmulatorToolchain, entry: str) -> None:
    """Every array has exactly the size that it needs, and the counter is zero again."""
    numbers, names = SANITIZED[entry]
    file = "scored_mask.cu" if entry in ("share_of_rows", "from_threshold") else "joined_mask.cu"
    compiled = emulator_toolchain.compile_sanitized("plain", entry, plain_source(file))
    rows, columns = 35, 150
    layout = BlockMaskLayout(rows, columns)
    rng = np.random.default_rng(1)
    arrays = {
        "scores": scored(1, rows, columns),
        "mask": words_of(drawn(1, rows, columns, 0.2, 3)),
        "counts": np.full(rows, 2, np.int32),
        "three": rng.integers(0, columns, (rows, 3), np.int32),
        "two": rng.integers(0, columns, (rows, 2), np.int32),
    }
    given = [*numbers, *(arrays[name] for name in names)]
    scratch = np.zeros(scratch_words(layout), np.uint64)
    mask = np.full(layout.words, 2**64 - 1, np.uint64)
    band = mask_sources.SCORED_BAND if file == "scored_mask.cu" else mask_sources.BAND
    launch = Launch((-(-rows // band), 1, 1), (32 * band, 1, 1))
    *_, left, found = run_sanitized(compiled.binary, launch, [rows, columns, *given, scratch, mask])
    assert left[0] == 0, "the next launch counts from zero"
    np.testing.assert_array_equal(found, packed(blocks(found, layout)))
