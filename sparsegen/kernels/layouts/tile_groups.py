"""Rows of a layer in groups of 16 that share columns, columns in blocks of 16 that share rows: tiles for tensor cores.

Rows with equal sets of columns come to stand together, and so do columns that the same groups use; both are cut every
16. What is equal in sets of 16 or more fills its tiles whole, what is nearly equal meets a few more tiles, and any
matrix at all is represented. Nothing is assumed of how a network was made.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sparsegen.matrix.csr import Array

SIDE = 16  # rows of a group, columns of a block
BANKS = 8  # runs of 16 bytes that shared memory gives at once
NONE = -1  # no row, no column


class LayerKind(IntEnum):
    """How the groups of a layer take their blocks; kernels know these numbers.

    ``PAIRS``: every group takes two blocks. ``CHAINS``: so that of two groups that follow each other in a run, the next
    one takes one block and keeps the other. ``TWINS``: so that it keeps both, every second time.
    """

    GENERAL = 0
    PAIRS = 1
    CHAINS = 2
    TWINS = 3


@dataclass(frozen=True, slots=True, eq=False)
class TileGroups:
    """The groups, blocks and tiles of one layer.

    Attributes:
        kind: how groups take blocks.
        rows: int64, groups × 16: rows of the layer, `NONE` where a group has fewer.
        block: int64, of each column its block.
        columns: int64, blocks × 16: columns, `NONE` where a block has fewer.
        first: int64, groups + 1: where the tiles of each group begin.
        tiles: int64: the blocks of all groups' tiles. A group of a layer that is not general has two, in the order in
            which the kernel keeps them.
    """

    kind: LayerKind
    rows: Array
    block: Array
    columns: Array
    first: Array
    tiles: Array

    @property
    def count(self) -> int:
        """Of groups."""
        return len(self.rows)

    def blocks_loaded(self, run: int) -> int:
        """How many blocks a kernel loads that takes groups in runs."""
        if self.kind is LayerKind.GENERAL:
            return self.tiles.size
        place = np.arange(self.count) % run
        if self.kind is LayerKind.CHAINS:
            return int(np.where(place == 0, 2, 1).sum())
        if self.kind is LayerKind.TWINS:
            return int(np.where(place % 2 == 0, 2, 0).sum())
        return 2 * self.count

    @classmethod
    def of(cls, offsets: Array, columns: Array, width: int, run: int) -> TileGroups:
        """The groups of a layer.

        Args:
            offsets, columns: its pattern in CSR.
            width: columns there are.
            run: groups that a warp takes one after another.
        """
        count = offsets.size - 1
        row = np.repeat(np.arange(count), np.diff(offsets))
        order = _together(_sums(_scrambled(columns), offsets), _least(columns, offsets, width))
        rows = in_rows(order)
        group = np.empty(count, dtype=np.int64)
        group[order] = np.arange(count) // SIDE
        used = np.unique(columns.astype(np.int64) * max(1, len(rows)) + group[row])
        of_column, by_group = np.divmod(used, max(1, len(rows)))
        starts = np.searchsorted(of_column, np.arange(width + 1))
        blocks = in_rows(_together(_sums(_scrambled(by_group), starts), _least(by_group, starts, len(rows))))
        block = np.empty(width, dtype=np.int64)
        filled = blocks != NONE
        block[blocks[filled]] = np.nonzero(filled)[0]
        keys = np.unique(group[row] * max(1, len(blocks)) + block[columns])
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
    """A place in its block for each column, such that neither blocks nor the groups that write them meet conflicts.

    Columns of a block and rows of a group are edges between blocks and groups, 16 at each. Three times edges are halved
    evenly at both ends (Euler splits), which gives them 8 colours, each twice at every block and group. A column's
    place modulo 8 is its colour, so that 8 rows of a fragment lie in different banks where they are written and where
    they are read.

    Args:
        producers: int64, groups × 16: which rows of the layer before each group makes, with `NONE`.
        columns: int64, blocks × 16, with `NONE`; as many of each.

    Returns:
        int64, blocks × 16: ``columns``, each at its place.
    """
    count = producers.size
    made, read = producers.ravel(), columns.ravel()
    at = np.empty(count, dtype=np.int64)  # of the edges, which are numbered as the columns are
    at[np.argsort(made, kind="stable")] = np.argsort(read, kind="stable")
    of_group = np.empty(count, dtype=np.int64)
    of_group[at] = np.arange(count) // SIDE
    of_block = np.arange(count) // SIDE
    colour = np.zeros(count, dtype=np.int64)
    for _ in range(3):
        colour = 2 * colour + _halves(of_group * BANKS + colour, of_block * BANKS + colour)
    order = np.lexsort((np.arange(count), colour, of_block))
    twice = read[order].reshape(-1, BANKS, 2)
    return np.concatenate((twice[:, :, 0], twice[:, :, 1]), axis=1)


def _halves(one: Array, other: Array) -> Array:
    """0 or 1 for each edge, evenly at each vertex of either side: along closed trails it alternates.

    Edges are paired at each vertex. Going to the partner at one side and on to the partner at the other stays among
    edges of one half; the half is the smallest edge that is met, against the partner's.
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
    """Of each edge another one at the same vertex, in pairs; every vertex has an even number of edges."""
    pairs = np.argsort(vertex, kind="stable").reshape(-1, 2)
    partner = np.empty(vertex.size, dtype=np.int64)
    partner[pairs[:, 0]], partner[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    return partner


def _scrambled(numbers: Array) -> Array:
    """Numbers as uint64 whose sums tell sets apart."""
    x = numbers.astype(np.uint64) + np.uint64(1)
    for shift, factor in ((31, 0x9E3779B97F4A7C15), (29, 0xBF58476D1CE4E5B9), (32, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def _sums(values: Array, offsets: Array) -> Array:
    """Of each row, modulo 2⁶⁴."""
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)))
    found: Array = running[offsets[1:]] - running[offsets[:-1]]
    return found


def _least(numbers: Array, offsets: Array, most: int) -> Array:
    """The first number of each row, which is its least; ``most`` in an empty row."""
    padded = np.append(numbers, most)
    found: Array = np.where(np.diff(offsets) > 0, padded[np.minimum(offsets[:-1], numbers.size)], most)
    return found


def _together(sets: Array, least: Array) -> Array:
    """An order in which equal sets stand together, and those that begin alike near each other."""
    return np.lexsort((sets, least))


def in_rows(order: Array) -> Array:
    """In rows of 16; the last one is filled up with `NONE`."""
    padded = np.full(-(-order.size // SIDE) * SIDE, NONE, dtype=np.int64)
    padded[: order.size] = order
    return padded.reshape(-1, SIDE)


def _pairs(first: Array, tiles: Array) -> Array:
    """Two blocks for each group, where it uses fewer some that it does not use, or one twice."""
    counts = np.diff(first)
    padded = np.append(tiles, (0, 0))
    one = np.where(counts > 0, padded[np.minimum(first[:-1], tiles.size)], 0)
    two = np.where(counts > 1, padded[np.minimum(first[:-1] + 1, tiles.size)], one)
    return np.stack((one, two), axis=1)


def _trail(pairs: Array, blocks: int) -> Array:
    """An order of groups in which each, where it can, shares a block with the one before: trails through the blocks."""
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
    """Each group's two blocks in the order in which a run keeps them, and what that makes of the layer."""
    if run > 1 and _are_twins(pairs, run):
        return np.sort(pairs, axis=1), LayerKind.TWINS
    turned = pairs.copy()
    for start in range(0, len(pairs), run):
        part = turned[start : start + run]
        if not _chained(part):
            return pairs, LayerKind.PAIRS
    return turned, LayerKind.CHAINS if run > 1 else LayerKind.PAIRS


def _are_twins(pairs: Array, run: int) -> bool:
    place = np.arange(len(pairs)) % run
    ordered = np.sort(pairs, axis=1)
    follow = np.flatnonzero(place % 2 == 1)
    return bool(follow.size) and bool((ordered[follow] == ordered[follow - 1]).all())


def _chained(part: Array) -> bool:
    """Turns the pairs of a run such that odd ones keep the second block of the one before, even ones the first."""
    if len(part) > 1 and part[0, 1] not in part[1]:
        part[0] = part[0, ::-1]
    for i in range(1, len(part)):
        kept = i % 2
        if part[i, kept] != part[i - 1, kept]:
            part[i] = part[i, ::-1]
        if part[i, kept] != part[i - 1, kept]:
            return False
    return True
