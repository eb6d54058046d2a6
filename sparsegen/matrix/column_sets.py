"""Rows that share their columns: sets of columns by hashes, an order that brings equal ones together, and its tiles."""

from __future__ import annotations

import numpy as np

from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

SIDE = 16  # rows of a group, columns of a tile
PARTS = 4  # of a row, at whose ends its columns are compared
GROUPS_SAMPLED = 64


def scrambled(numbers: Array) -> Array:
    """Hash numbers to uint64 values such that different sets have different sums."""
    x = numbers.astype(np.uint64) + np.uint64(1)
    for shift, factor in ((31, 0x9E3779B97F4A7C15), (29, 0xBF58476D1CE4E5B9), (32, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def sums_of_rows(values: Array, offsets: Array) -> Array:
    """The sum of each row, modulo 2⁶⁴."""
    running = np.zeros(values.size + 1, np.uint64)
    np.cumsum(values, dtype=np.uint64, out=running[1:])
    found: Array = running[offsets[1:]] - running[offsets[:-1]]
    return found


def least_of_rows(numbers: Array, offsets: Array, most: int) -> Array:
    """The first and so least number of each row; ``most`` for an empty row."""
    found: Array = np.full(offsets.size - 1, most, dtype=np.int64)
    is_filled = np.diff(offsets) > 0
    found[is_filled] = numbers[offsets[:-1][is_filled]]
    return found


def together(offsets: Array, columns: Array, width: int) -> Array:
    """An order of rows in which equal sets of columns are adjacent, and sets with the same least column are close.

    Args:
        offsets, columns: a pattern in CSR.
        width: the number of its columns.
    """
    few = width < columns.size  # then each column's hash is looked up
    sets = sums_of_rows(scrambled(np.arange(width))[columns] if few else scrambled(columns), offsets)
    return np.lexsort((sets, least_of_rows(columns, offsets, width)))


def shared_fill(offsets: Array, columns: Array) -> float:
    """Nonzeros over the places of the 16 × 16 tiles that hold them, if 16 rows that share columns are tiled together,
    of some groups of rows; 0 unless half of the rows have nonzeros and share their columns with another one.

    Rows that agree in length and in a few of their columns count as equal, which takes a millisecond where looking at
    all nonzeros takes many.

    Args:
        offsets, columns: see `together`.
    """
    filled = np.flatnonzero(np.diff(offsets))
    if not 2 * filled.size > offsets.size - 1:
        return 0.0
    first, lengths = offsets[:-1][filled].astype(np.int64), np.diff(offsets)[filled].astype(np.int64)
    seen = np.stack([columns[first + (lengths - 1) * part // PARTS] for part in range(PARTS + 1)])
    weights = scrambled(np.arange(PARTS + 2))
    sets = (scrambled(np.vstack((lengths, seen))) * weights[:, None]).sum(axis=0, dtype=np.uint64)
    order = np.lexsort((sets, seen[0]))
    ordered = sets[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1], [True]))
    is_alone = is_first[:-1] & is_first[1:]
    if not 2 * np.count_nonzero(~is_alone) > offsets.size - 1:
        return 0.0
    groups = ceil_div(filled.size, SIDE)
    nonzeros = tiles = 0
    for group in np.unique(np.linspace(0, groups - 1, GROUPS_SAMPLED).astype(int)):
        rows = filled[order[SIDE * group : SIDE * (group + 1)]]
        held = np.concatenate([columns[offsets[row] : offsets[row + 1]] for row in rows])
        nonzeros += held.size
        tiles += ceil_div(distinct(held).size, SIDE)
    return nonzeros / (tiles * SIDE * SIDE)


def distinct(numbers: Array) -> Array:
    """The numbers that occur, sorted; several times as fast as NumPy's own, which hashes them first."""
    ordered = np.sort(numbers)
    is_first = np.ones(ordered.size, dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    found: Array = ordered[is_first]
    return found


def tiles_of_groups(offsets: Array, columns: Array, width: int) -> int:
    """Lower bound on the 16 × 16 tiles of a pattern, if 16 rows at a time that share columns are tiled together.

    Args:
        offsets, columns, width: see `together`.
    """
    rank = np.empty(offsets.size - 1, dtype=np.int64)
    rank[together(offsets, columns, width)] = np.arange(rank.size)
    group = np.repeat(rank // SIDE, np.diff(offsets))
    used = distinct(group * max(1, width) + columns) // max(1, width)
    return int((ceil_div(np.bincount(used), SIDE)).sum())
