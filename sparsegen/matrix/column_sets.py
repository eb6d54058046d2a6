"""Rows that share their columns: sets of columns by hashes, an order that brings equal ones together, and its tiles."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.csr import Array

SIDE = 16  # rows of a group, columns of a tile


def scrambled(numbers: Array) -> Array:
    """Hash numbers to uint64 values such that different sets have different sums."""
    x = numbers.astype(np.uint64) + np.uint64(1)
    for shift, factor in ((31, 0x9E3779B97F4A7C15), (29, 0xBF58476D1CE4E5B9), (32, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def sums_of_rows(values: Array, offsets: Array) -> Array:
    """The sum of each row, modulo 2⁶⁴."""
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)))
    found: Array = running[offsets[1:]] - running[offsets[:-1]]
    return found


def least_of_rows(numbers: Array, offsets: Array, most: int) -> Array:
    """The first and so least number of each row; ``most`` for an empty row."""
    padded = np.append(numbers, most)
    found: Array = np.where(np.diff(offsets) > 0, padded[np.minimum(offsets[:-1], numbers.size)], most)
    return found


def together(offsets: Array, columns: Array, width: int) -> Array:
    """An order of rows in which equal sets of columns are adjacent, and sets with the same least column are close.

    Args:
        offsets, columns: of a pattern in CSR.
        width: the number of its columns.
    """
    sets = sums_of_rows(scrambled(columns), offsets)
    return np.lexsort((sets, least_of_rows(columns, offsets, width)))


def tiles_of_groups(offsets: Array, columns: Array, width: int) -> int:
    """How many 16 × 16 tiles hold a pattern at least, if 16 rows at a time that share columns are tiled together.

    Args:
        offsets, columns, width: see `together`.
    """
    rank = np.empty(offsets.size - 1, dtype=np.int64)
    rank[together(offsets, columns, width)] = np.arange(rank.size)
    group = np.repeat(rank // SIDE, np.diff(offsets))
    used = np.unique(group * max(1, width) + columns) // max(1, width)
    return int((-(-np.bincount(used) // SIDE)).sum())
