"""A matrix in 16 × 16 tiles of rows that share columns: NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegen.kernels.layouts.tile_groups import NONE, SIDE, TILE, in_fragment, in_rows
from sparsegen.matrix.column_sets import together
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array


class GroupTiles(NamedTuple):
    """Groups of 16 rows, and for each the columns that any of its rows has, 16 to a tile.

    Attributes:
        rows: int32 [groups, 16], padded with `NONE`.
        first: int32 [groups + 1], where the tiles of each group begin.
        columns: int32 [tiles, 16], padded with `NONE`.
        source: int32 [tiles · 256]: of each place the nonzero's number, or -1; in the order of m16n8k16's operand A.
    """

    rows: Array
    first: Array
    columns: Array
    source: Array


def group_tiles(matrix: CsrMatrix) -> GroupTiles:
    """Rows with equal sets of columns become neighbours, then groups in this order."""
    m, k = matrix.shape
    offsets, width = matrix.row_offsets, max(1, k)
    order = together(offsets, matrix.column_indices, k)
    rows = in_rows(order)
    rank = np.empty(m, dtype=np.int64)
    rank[order] = np.arange(m)
    place = np.repeat(rank, np.diff(offsets))
    group, in_group = np.divmod(place, SIDE)
    used, which = np.unique(group * width + matrix.column_indices, return_inverse=True)
    counts = np.bincount(used // width, minlength=len(rows))
    tiles = ceil_div(counts, SIDE)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(tiles)))
    number = np.arange(used.size) - np.repeat(np.cumsum(counts) - counts, counts)
    slot = SIDE * first[used // width] + number  # place of each used column among all tiles' columns
    columns = np.full(SIDE * int(first[-1]), NONE, dtype=np.int32)
    columns[slot] = used % width
    source = np.full(TILE * int(first[-1]), NONE, dtype=np.int32)
    at = slot[which.ravel()]
    source[at // SIDE * TILE + in_fragment(in_group, at % SIDE)] = np.arange(matrix.nnz)
    return GroupTiles(rows.astype(np.int32), first.astype(np.int32), columns.reshape(-1, SIDE), source)
