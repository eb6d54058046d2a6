"""An inspector that finds tiles for tensor cores: groups of 16 rows that share columns, blocks of 16 columns.

It sorts rows with equal sets of columns next to each other, then columns that the same groups use, and cuts both into
sets of 16. Sets of 16 or more equal rows or columns give dense tiles; sets that are only similar need more tiles. It
can represent any matrix and assumes nothing about how a network was generated.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sparsegen.matrix import column_sets
from sparsegen.matrix.column_sets import distinct, together
from sparsegen.system.integers import round_up
from sparsegen.system.numpy_types import Array

SIDE = column_sets.SIDE  # rows of a group, columns of a block
TILE = SIDE * SIDE  # values of a tile
BANKS = 8  # runs of 16 bytes that shared memory delivers in one access
NONE = -1  # no row, no column


class LayerKind(IntEnum):
    """A layer's kind of block reuse between its groups; kernels know these numbers.

    ``PAIRS``: every group uses two blocks. ``CHAINS``: in addition, each group of a run reuses one block of the group
    before it. ``TWINS``: every second group of a run reuses both blocks of the group before it.
    """

    GENERAL = 0
    PAIRS = 1
    CHAINS = 2
    TWINS = 3


@dataclass(frozen=True, slots=True, eq=False)
class TileGroups:
    """The groups, blocks and tiles of one layer.

    Attributes:
        kind: kind of the groups' use of blocks.
        rows: int64 [groups, 16], the rows of each group, padded with `NONE`.
        block: int64 [columns], the block of each column.
        columns: int64 [blocks, 16], the columns of each block, padded with `NONE`.
        first: int64 [groups + 1], where the tiles of each group begin.
        tiles: int64 [tiles], the block of each tile, group by group. Unless the kind is ``GENERAL``, each group has two
            tiles, in the order in which the kernel holds their blocks.
    """

    kind: LayerKind
    rows: Array
    block: Array
    columns: Array
    first: Array
    tiles: Array

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.rows)

    @classmethod
    def of(cls, offsets: Array, columns: Array, width: int, run: int) -> TileGroups:
        """Find the groups of a layer.

        Args:
            offsets, columns: the layer's pattern in CSR.
            width: the layer's number of columns.
            run: the number of groups that a warp processes one after another.
        """
        count = offsets.size - 1
        order = together(offsets, columns, width)
        rows = in_rows(order)
        # 32 bits are enough for most layers, and half as much to move and to sort.
        number = np.dtype(np.int32 if width * max(1, len(rows)) < 1 << 31 else np.int64)
        group: Array = np.empty(count, dtype=number)
        group[order] = np.arange(count) // SIDE
        of_row = np.repeat(group, np.diff(offsets))
        used = distinct(columns.astype(number) * max(1, len(rows)) + of_row)
        of_column, by_group = np.divmod(used, max(1, len(rows)))
        starts = np.searchsorted(of_column, np.arange(width + 1))
        blocks = in_rows(together(starts, by_group, len(rows)))
        block = np.empty(width, dtype=np.int64)
        filled = blocks != NONE
        block[blocks[filled]] = np.nonzero(filled)[0]
        keys = distinct(of_row * max(1, len(blocks)) + block.astype(number)[columns]).astype(np.int64)
        tiles = keys % max(1, len(blocks))
        first = np.searchsorted(keys, np.arange(len(rows) + 1) * max(1, len(blocks)))
        counts = np.diff(first)
        if counts.size == 0 or counts.max() > 2 or len(blocks) == 0:
            return cls(LayerKind.GENERAL, rows, block, blocks, first, tiles)
        pairs = _pairs(first, tiles)
        trail = _trail(pairs, len(blocks))
        pairs, kind = _oriented(pairs[trail], run)
        return cls(kind, rows[trail], block, blocks, 2 * np.arange(len(rows) + 1), pairs.ravel())


def spread(producers: Array, columns: Array) -> Array:
    """Order the columns within each block such that neither writing nor reading them causes bank conflicts.

    The neurons between two layers are the edges of a bipartite graph: each connects the group that writes it with the
    block that reads it, and every vertex has 16 edges. Three Euler splits, each of which halves the edges evenly at all
    vertices, give the edges 8 colours, each of which occurs twice at every vertex. The colour of a column is its place
    modulo 8. Therefore 8 rows of a fragment are in different banks, both when they are written and when they are read.

    Args:
        producers: int64 [groups, 16], the rows of the previous layer that each group computes, padded with `NONE`; or
            [sets, 8], the neurons written in one access, which get different colours.
        columns: int64 [blocks, 16], padded with `NONE`; as many elements as ``producers``.

    Returns:
        int64 [blocks, 16]: ``columns`` in their new order.
    """
    count = producers.size
    made, read = producers.ravel(), columns.ravel()
    at = np.empty(count, dtype=np.int64)  # the edges, which have the numbers of the columns
    at[np.argsort(made, kind="stable")] = np.argsort(read, kind="stable")
    of_group = np.empty(count, dtype=np.int64)
    of_group[at] = np.arange(count) // producers.shape[1]
    of_block = np.arange(count) // SIDE
    colour = np.zeros(count, dtype=np.int64)
    for _ in range(3):
        colour = 2 * colour + _halves(of_group * BANKS + colour, of_block * BANKS + colour)
    order = np.lexsort((np.arange(count), colour, of_block))
    twice = read[order].reshape(-1, BANKS, 2)
    return np.concatenate((twice[:, :, 0], twice[:, :, 1]), axis=1)


def _halves(one: Array, other: Array) -> Array:
    """Split the edges evenly at each vertex of both sides: 0 or 1 for each edge, alternating along closed trails.

    Edges are paired at each vertex. A step to the partner on one side and then to its partner on the other side stays
    in the same half. An edge belongs to half 1 if the smallest edge that such steps reach is larger than its partner's.
    """
    here, there = _partners(one), _partners(other)
    onward = there[here]
    least = np.minimum(np.arange(onward.size), onward)
    jump = onward
    for _ in range(max(1, int(onward.size)).bit_length()):
        jump = jump[jump]
        least = np.minimum(least, least[jump])
        if (least[onward] == least).all():
            break
    found: Array = (least > least[here]).astype(np.int64)
    return found


def _partners(vertex: Array) -> Array:
    """Pair the edges at each vertex, and return the partner of each edge; every vertex has an even number of edges."""
    pairs = np.argsort(vertex, kind="stable").reshape(-1, 2)
    partner = np.empty(vertex.size, dtype=np.int64)
    partner[pairs[:, 0]], partner[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    return partner


def in_rows(order: Array) -> Array:
    """Returns the order in rows of 16, the last one padded with `NONE`."""
    padded = np.full(round_up(order.size, SIDE), NONE, dtype=np.int64)
    padded[: order.size] = order
    return padded.reshape(-1, SIDE)


def in_fragment(row: Array, column: Array) -> Array:
    """Returns the position of a value of a 16 × 16 tile in operand A of m16n8k16, lane by lane."""
    lane = row % 8 * 4 + column % 8 // 2
    found: Array = lane * 8 + column % 2 + 2 * (row // 8) + 4 * (column // 8)
    return found


def _pairs(first: Array, tiles: Array) -> Array:
    """Two blocks for each group; a group that uses fewer gets the same block twice, or block 0."""
    counts = np.diff(first)
    padded = np.append(tiles, (0, 0))
    one = np.where(counts > 0, padded[np.minimum(first[:-1], tiles.size)], 0)
    two = np.where(counts > 1, padded[np.minimum(first[:-1] + 1, tiles.size)], one)
    return np.stack((one, two), axis=1)


def _trail(pairs: Array, blocks: int) -> Array:
    """An order of groups in which each shares a block with the one before, if possible: trails through the blocks."""
    left, right = pairs[:, 0].tolist(), pairs[:, 1].tolist()
    at: list[list[int]] = [[] for _ in range(blocks)]
    for group in range(len(left) - 1, -1, -1):
        at[left[group]].append(group)
        at[right[group]].append(group)
    is_used, order = [False] * len(left), []
    for start in range(len(left)):
        group, block = start, left[start]
        while group != NONE and not is_used[group]:
            is_used[group] = True
            order.append(group)
            block = right[group] if left[group] == block else left[group]
            waiting = at[block]
            while waiting and is_used[waiting[-1]]:
                waiting.pop()
            group = waiting[-1] if waiting else NONE
    return np.array(order, dtype=np.int64)


def _oriented(pairs: Array, run: int) -> tuple[Array, LayerKind]:
    """Each group's two blocks in the order in which a run holds them, and the resulting kind of the layer."""
    if run > 1 and _are_twins(pairs, run):
        return np.sort(pairs, axis=1), LayerKind.TWINS
    whole = len(pairs) // run * run
    turned = [_chained(pairs[:whole].reshape(-1, run, 2)), _chained(pairs[whole:].reshape(1, -1, 2))]
    if any(runs is None for runs in turned):
        return pairs, LayerKind.PAIRS
    joined = np.concatenate([runs.reshape(-1, 2) for runs in turned if runs is not None])
    return joined, LayerKind.CHAINS if run > 1 else LayerKind.PAIRS


def _are_twins(pairs: Array, run: int) -> bool:
    place = np.arange(len(pairs)) % run
    ordered = np.sort(pairs, axis=1)
    follow = np.flatnonzero(place % 2 == 1)
    return bool(follow.size) and bool((ordered[follow] == ordered[follow - 1]).all())


def _chained(runs: Array) -> Array | None:
    """Swap pairs of all runs such that odd ones reuse the second block of the one before and even ones the first.

    Args:
        runs: runs × groups of a run × 2.

    Returns:
        The pairs so, or None where this is not possible.
    """
    turned = runs.copy()
    if turned.shape[1] > 1:
        first, second = turned[:, 0], turned[:, 1]
        is_lost = (first[:, 1] != second[:, 0]) & (first[:, 1] != second[:, 1])
        turned[is_lost, 0] = turned[is_lost, 0, ::-1]
    for i in range(1, turned.shape[1]):
        kept = i % 2
        is_other = turned[:, i, kept] != turned[:, i - 1, kept]
        turned[is_other, i] = turned[is_other, i, ::-1]
        if (turned[:, i, kept] != turned[:, i - 1, kept]).any():
            return None
    return turned
