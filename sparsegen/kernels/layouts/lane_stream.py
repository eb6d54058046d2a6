"""The lane-stream format: a bit for each weight, and every lane's nonzeros as a stream of its own.

A *tile* is 32 rows by 32 columns of A. Lane 4 g + t of a warp has 32 weights of it, as the fragments of four
m16n8k16 products want them: rows 16 i + 8 h + g and columns 8 t + 4 u + 2 p + e, with i, h, u, p, e in {0, 1}. Product
(u, i) is number s = 2 u + i, its register p, h is number r = 2 p + h, its low and high half are e.

- *masks*: one 32-bit word for each lane and tile, bit 8 r + 2 s + e.
- *values*: what a warp of a block ever multiplies is one run of tiles, and the nonzeros of one of its lanes, in the
  order of tiles, s, r, e, are that lane's stream. Streams of a warp are interleaved in chunks of 8 elements (16
  bytes), so that the warp reads 512 bytes that follow one another. Element 0 of a stream stands before its values. The
  first ``head_pairs`` pairs of chunks of every stream lie in front, stream by stream: these a warp finds by its number,
  and need not wait for *starts*, which say where the rest of its stream is.

A warp has two tiles of a step, side by side: 32 rows and 64 columns.

Nothing says where in its stream a lane is; it has counted its bits. A warp's lanes read from a ring that holds the last
``ring_rows`` elements of each, and which all of them fill together, a pair of chunks at a time. Every ``refill_tiles``
tiles there is an order for it: how many pairs the tiles up to the next one need. Where lanes have drifted so far apart
that these come over what the last ones still need, those leave out elements until they do not: nothing is stored there.

- *orders*: a word for each step and warp, for tile 0 in its low half and for tile 1 in its high one (which is 0 where
  steps are refilled as a whole): bits 0 to 2 the pairs, bit 3 whether lanes leave out elements.

Rows and columns are filled up to whole tiles with zeros, which take a bit each and no value.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.system.integers import ceil_div, round_up

LANES = 32
TILE = 32  # rows and columns
TILES_PER_STEP = 2  # tiles of a warp between two waits for its block
CHUNK = 8  # elements of one stream that lie together
PAIR = 2 * CHUNK  # elements by which a ring is filled
ORDERS_AT_ONCE = 4  # words that a copy moves
WEIGHTS_AT_ONCE = 1 << 21  # weights that a thread sorts at a time (at least one group), about 10 bytes each
THREADS = min(4, os.cpu_count() or 1)  # most of NumPy's work here is done without the interpreter's lock

# Bit 8 s + 2 r + e, the order of values, to bit 8 r + 2 s + e, the order of masks.
_SHUFFLED = np.array([8 * (i >> 1 & 3) + 2 * (i >> 3) + (i & 1) for i in range(32)], dtype=np.uint32)

_BITS = np.array([i.bit_count() for i in range(256)], dtype=np.uint8)


class Partition(NamedTuple):
    """Division of tiles among blocks and warps.

    A group is ``TILE · warps_m`` rows, a step of it ``step_columns · warps_k`` columns. Group by group, and step by
    step in each, the steps are given out to the blocks in equal runs (stream-K: Osama et al., PPoPP 2023). Of a step,
    warp ``warps_m · j + i`` has the i-th strip of rows and the j-th ``step_columns`` columns, tile beside tile.
    """

    m: int
    k: int
    warps_m: int
    warps_k: int
    blocks: int  # at most; there are no more than steps
    tiles: int = TILES_PER_STEP  # of a warp in a step

    @property
    def warps(self) -> int:
        return self.warps_m * self.warps_k

    @property
    def step_columns(self) -> int:
        """The columns of a warp in one step."""
        return TILE * self.tiles

    @property
    def groups(self) -> int:
        return ceil_div(self.m, TILE * self.warps_m)

    @property
    def steps(self) -> int:
        """The steps of one group."""
        return max(1, ceil_div(self.k, self.step_columns * self.warps_k))

    @property
    def total(self) -> int:
        return self.groups * self.steps

    @property
    def used_blocks(self) -> int:
        return min(self.blocks, self.total)

    def begins(self) -> Array:
        """The first step of every block, and the end of the last one's (int64)."""
        blocks = self.used_blocks
        return np.arange(blocks + 1, dtype=np.int64) * self.total // max(1, blocks)


class LaneStreams(NamedTuple):
    """A packed pattern.

    Attributes:
        masks: uint32 [steps of all groups, warps, lanes, 2].
        orders: uint32 [steps of all groups, warps filled up to a multiple of 4].
        starts: int32, of each stream (block by block, warp by warp) where what is behind its head begins, and where the
            last one ends, in pairs of chunks of all lanes.
        source: int32, of each stored element the nonzero's number in CSR order, or -1.
    """

    masks: Array
    orders: Array
    starts: Array
    source: Array


def pack(
    matrix: CsrMatrix,
    partition: Partition,
    *,
    refill_tiles: int,
    ring_rows: int,
    head_pairs: int,
    rows: Array | None = None,
) -> LaneStreams:
    """Lay out a pattern.

    Args:
        refill_tiles: tiles between two orders; 1 or 2.
        ring_rows: elements that a ring holds; at least what a lane can take between two orders, a pair and 2 more.
        head_pairs: pairs of chunks at the begin of every stream, which lie in front of all others.
        rows: see `balanced_rows`; None for the matrix's own order.

    Raises:
        MatrixError: the values pass the 32-bit range of their numbers.
    """
    from concurrent.futures import ThreadPoolExecutor

    shape = (partition.total, partition.warps, TILES_PER_STEP, LANES)
    bits, order = np.zeros(shape, dtype=np.uint32), [np.empty(0, dtype=np.int32)]
    with ThreadPoolExecutor(THREADS) as pool:
        sorting = functools.partial(sort_groups, matrix, partition, rows, bits)
        order += pool.map(sorting, range(0, partition.groups, groups_at_once(partition)))
    counts = bit_counts(bits)
    positions, orders, farthest = _positions(counts, partition, refill_tiles, ring_rows)
    pairs = pairs_of(farthest)
    starts = starts_of(pairs, head_pairs, matrix.nnz)
    source = np.full(starts[-1] * PAIR * LANES, -1, dtype=np.int32)
    begins, nonzeros = partition.begins(), np.r_[0, np.cumsum(counts.sum(axis=(1, 2, 3), dtype=np.int64))]
    ordered = np.concatenate(order)

    def fill(block: int) -> None:
        steps = slice(begins[block], begins[block + 1])
        streams = slice(block * partition.warps, (block + 1) * partition.warps)
        mine = ordered[nonzeros[steps.start] : nonzeros[steps.stop]]
        filled = _filled(mine, counts[steps], positions[steps], pairs[streams])
        for stream, chunks in zip(range(streams.start, streams.stop), filled, strict=True):
            for first, part in (
                (stream * head_pairs, chunks[: 2 * head_pairs]),
                (int(starts[stream]), chunks[2 * head_pairs :]),
            ):
                target = slice(first * PAIR * LANES, first * PAIR * LANES + part.size)
                source[target].reshape(part.shape)[...] = part

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(fill, range(partition.used_blocks)):
            pass
    return LaneStreams(_as_masks(bits), orders, starts, source)


def bit_counts(words: Array) -> Array:
    """Returns how many bits are set in each word (uint8)."""
    counts: Array = (
        _BITS[words.view(np.uint8)].reshape(*words.shape, words.itemsize).sum(axis=-1, dtype=np.uint8)
    )
    return counts


def pairs_of(farthest: Array) -> Array:
    """Pairs of chunks that streams have (int64), by the most elements that a lane of each has gone through."""
    return ceil_div(farthest.astype(np.int64) + 2, PAIR)  # as in `_needed`


def starts_of(pairs: Array, head_pairs: int, nnz: int) -> Array:
    """Returns where the pairs behind each stream's head begin, and the end of the last, in pairs (int32).

    Args:
        pairs: number of pairs in each stream.
        head_pairs: pairs in each head; a stream with fewer is padded.
        nnz: nonzeros of the matrix, for the message.

    Raises:
        MatrixError: the values pass the 32-bit range of their numbers.
    """
    starts = pairs.size * head_pairs + np.r_[0, np.cumsum(np.maximum(pairs - head_pairs, 0))]
    if starts[-1] * PAIR * LANES > MAX_INDEX:
        raise MatrixError(
            f"{nnz} nonzeros take {starts[-1] * PAIR * LANES} places, more than 32-bit numbers reach ({MAX_INDEX}); "
            "split the matrix by rows"
        )
    narrow: Array = starts.astype(np.int32)
    return narrow


def groups_at_once(partition: Partition) -> int:
    """Groups of rows that a thread sorts at a time."""
    weights = partition.tiles * TILE * TILE * partition.warps * partition.steps  # weights of one group
    return max(1, WEIGHTS_AT_ONCE // weights)


def sort_groups(
    matrix: CsrMatrix, partition: Partition, rows: Array | None, bits: Array, first: int
) -> Array:
    """Set the bits, in the order of values, of some groups from the ``first`` one on.

    Returns:
        int32: the numbers of their nonzeros in CSR order, in the order of values, lanes, tiles, warps and steps.
    """
    arranged = arranged_groups(matrix, partition, rows, first)
    present = arranged >= 0
    words = np.packbits(present, bitorder="little").view("<u4")
    target = bits[first * partition.steps :][: words.size // bits[0].size]
    target[...] = words.reshape(target.shape)
    order: Array = arranged.take(np.flatnonzero(present))
    return order


def arranged_groups(matrix: CsrMatrix, partition: Partition, rows: Array | None, first: int) -> Array:
    """Returns the numbers in CSR order, or -1, of the weights of some groups from the ``first`` one on (int32).

    They are in the order of values, lanes, tiles, warps and steps.
    """
    p = partition
    height, width = TILE * p.warps_m, p.steps * p.step_columns * p.warps_k
    groups = min(groups_at_once(p), p.groups - first)
    begin, end = first * height, (first + groups) * height
    numbers, lengths = _nonzeros(matrix, begin, end, rows)
    weights = np.full(groups * height * width, -1, dtype=np.int32)
    place = np.repeat(np.arange(lengths.size, dtype=np.int64) * width, lengths)
    place += matrix.column_indices[numbers]
    weights[place] = numbers
    # Both weights of a register move as one. Axes: group, warp (m), i, h, g; step, warp (k), tile, t, u, p.
    both = weights.view(np.int64).reshape(groups, p.warps_m, 2, 2, 8, p.steps, p.warps_k, p.tiles, 4, 2, 2)
    both = both.transpose(0, 5, 6, 1, 7, 4, 8, 9, 2, 10, 3)
    arranged: Array = np.ascontiguousarray(both).view(np.int32).ravel()
    return arranged


def _nonzeros(matrix: CsrMatrix, begin: int, end: int, rows: Array | None) -> tuple[Array, Array]:
    """The numbers of the nonzeros at some places of rows, place by place, and how many each place has."""
    m = matrix.shape[0]
    if rows is None:
        offsets = matrix.row_offsets[min(begin, m) : min(end, m) + 1]
        return np.arange(offsets[0], offsets[-1], dtype=np.int32), np.diff(offsets)
    chosen = rows[begin:end]
    offsets = np.append(matrix.row_offsets, matrix.row_offsets[-1])  # rows that only fill up are empty
    first = offsets[np.minimum(chosen, m)]
    lengths = offsets[np.minimum(chosen, m) + 1] - first
    ends = np.cumsum(lengths, dtype=np.int64)
    numbers = np.repeat(first - (ends - lengths), lengths) + np.arange(ends[-1])
    return numbers.astype(np.int32), lengths


def _positions(
    counts: Array, partition: Partition, refill_tiles: int, ring_rows: int
) -> tuple[Array, Array, Array]:
    """Returns each lane's position in its stream before each tile, and the refill orders that follow for the rings.

    Returns:
        Positions, int32 in the shape of ``counts``; the orders; and the final position of each stream's farthest lane.
    """
    p = partition
    begins = p.begins()
    runs = np.diff(begins)
    at = np.zeros((p.used_blocks, p.warps, LANES), dtype=np.int32)
    filled = np.zeros(at.shape[:2], dtype=np.int32)
    positions = np.empty(counts.shape, dtype=np.int32)
    orders = np.zeros((p.total, round_up(p.warps, ORDERS_AT_ONCE)), dtype=np.uint32)
    for step in range(int(runs.max(initial=0))):
        going = np.flatnonzero(step < runs)
        which = begins[going] + step
        now, held = at[going], filled[going]
        for tile in range(0, TILES_PER_STEP, refill_tiles):
            tiles = counts[which, :, tile : tile + refill_tiles].astype(np.int32)
            taken = tiles.sum(axis=2)
            needed = np.maximum(held, _needed(now + taken))
            # No lane is more than a whole ring behind: so where it is in the ring says where it is in its stream.
            kept = needed[..., None] - ring_rows
            late = (now < kept).any(axis=-1)
            now = np.maximum(now, kept)
            order = (needed - held) // PAIR | late << 3
            orders[which, : p.warps] |= order.astype(np.uint32) << np.uint32(16 * tile)
            positions[which, :, tile : tile + refill_tiles] = (
                now[:, :, None] + np.cumsum(tiles, axis=2) - tiles
            )
            now, held = now + taken, needed
        at[going], filled[going] = now, held
    return positions, orders, at.max(axis=-1).ravel()


def _needed(positions: Array) -> Array:
    """Elements that a ring must have got for its lanes to come so far: two more than the farthest, in whole pairs."""
    needed: Array = round_up(positions.max(axis=-1) + 2, PAIR)
    return needed


def _filled(order: Array, counts: Array, positions: Array, pairs: Array) -> Iterator[Array]:
    """A block's streams (chunks by lanes by elements) with its nonzeros, which come in the order of its words."""
    warps = pairs.size
    lengths = pairs * PAIR
    lanes_begin = np.r_[0, np.cumsum(np.repeat(lengths, LANES))]
    streams = np.full(lanes_begin[-1], -1, dtype=np.int32)
    count = counts.reshape(-1)
    begin = positions + (lanes_begin[:-1].reshape(warps, 1, LANES) + 1)
    begin = begin.reshape(-1) - (np.cumsum(count, dtype=np.int64) - count)
    streams[np.repeat(begin, count) + np.arange(order.size)] = order
    for warp in range(warps):
        one = streams[lanes_begin[warp * LANES] : lanes_begin[(warp + 1) * LANES]]
        yield one.reshape(LANES, lengths[warp] // CHUNK, CHUNK).transpose(1, 0, 2)


def _as_masks(bits: Array) -> Array:
    """Bits in the order of values, as [step, warp, tile, lane], to masks as [step, warp, lane, tile]."""
    masks = np.zeros_like(bits)
    for pair in range(0, 32, 2):  # both bits of a register stay together
        masks |= (bits >> np.uint32(pair) & np.uint32(3)) << _SHUFFLED[pair]
    return np.ascontiguousarray(masks.transpose(0, 1, 3, 2))
