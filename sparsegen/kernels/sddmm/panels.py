"""Panels of rows and the columns that they use, cut to tiles: NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.features import BLOCK, GRID_PER_NONZERO, Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.integers import ceil_div

FILL_STEPS = 8  # of a fixed point
NEARLY_FULL = 1 - 1e-9  # below 1, which has no logarithm of what is left


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """A pattern as panels of rows, each cut to tiles of the columns that have a nonzero in it.

    Rows without nonzeros are in no panel. Lists are filled up by repeating their last entry, so that reads beyond the
    end stay within bounds and their results are discarded.

    Attributes:
        of_tile: int32, of each tile its panel; the tiles of a panel follow each other.
        rows: int32 [panels · height], row numbers.
        columns: int32 [tiles · width], column numbers, rising within a panel.
        counts: int64, of each tile its nonzeros. Row by row these are numbered from 0.
        shifts: int32 [tiles · height], what to add, in each row of a tile, to a nonzero's number in the tile to have
            that in CSR order. It is one for a whole row, as the columns rise.
        tile, number, place: for each nonzero in CSR order its tile, its number there, and row · width + column there.
    """

    of_tile: Array
    rows: Array
    columns: Array
    counts: Array
    shifts: Array
    tile: Array
    number: Array
    place: Array

    @classmethod
    def of(cls, matrix: CsrMatrix, height: int, width: int, *, sort_rows: bool = False) -> Panels:
        """Panels of ``height`` rows and tiles of ``width`` columns.

        Args:
            sort_rows: take the rows by the column in the middle of their nonzeros, not in their order.
        """
        offsets = matrix.row_offsets.astype(np.int64)
        lengths = np.diff(offsets)
        rows = np.flatnonzero(lengths)
        if sort_rows:
            middle = matrix.column_indices[(offsets[:-1] + lengths // 2)[rows]]
            rows = rows[np.argsort(middle, kind="stable")]
        if not rows.size:
            nothing = np.zeros(0, dtype=np.int32)
            return cls(*[nothing] * 8)
        slot_of_row = np.zeros(lengths.size, dtype=np.int64)
        slot_of_row[rows] = np.arange(rows.size)
        panel, slot = np.divmod(np.repeat(slot_of_row, lengths), height)
        panels = ceil_div(rows.size, height)
        used, columns, rank = used_columns(panel, matrix.column_indices, panels, matrix.shape[1])

        tiles = ceil_div(used, width)
        total = int(tiles.sum())
        first_tile = np.cumsum(tiles) - tiles
        # A panel's columns fill its tiles but for the last places, which repeat the last column.
        within = np.arange(total * width) - np.repeat(first_tile * width, tiles * width)
        listed = np.minimum(within, np.repeat(used - 1, tiles * width))
        listed += np.repeat(np.cumsum(used) - used, tiles * width)

        tile = first_tile[panel] + rank // width
        in_rows = np.bincount(tile * height + slot, minlength=total * height).reshape(total, height)
        earlier = np.cumsum(in_rows, axis=0) - in_rows  # of a row, in earlier tiles of all panels
        starts = np.zeros(panels * height, dtype=np.int64)
        starts[: rows.size] = offsets[rows]
        starts = np.repeat(starts.reshape(panels, height) - earlier[first_tile], tiles, axis=0) + earlier
        shifts = starts - (np.cumsum(in_rows, axis=1) - in_rows)
        return cls(
            of_tile=np.repeat(np.arange(panels, dtype=np.int32), tiles),
            rows=rows[np.minimum(np.arange(panels * height), rows.size - 1)].astype(np.int32),
            columns=columns[listed],
            counts=in_rows.sum(axis=1),
            shifts=shifts.astype(np.int32).ravel(),
            tile=tile,
            number=np.arange(matrix.nnz) - shifts[tile, slot],
            place=slot * width + rank % width,
        )


def used_columns(panel: Array, column: Array, panels: int, n: int) -> tuple[Array, Array, Array]:
    """The columns of each panel that hold a nonzero.

    Args:
        panel, column: panel and column of each nonzero.

    Returns:
        How many each panel has (int64); their numbers (int32), panel by panel and rising within one; and of each
        nonzero the rank of its column in its panel's.
    """
    if panels * n > GRID_PER_NONZERO * column.size:
        key, place = np.unique(panel.astype(np.int64) * n + column, return_inverse=True)
        used = np.bincount(key // n, minlength=panels)
        return used, (key % n).astype(np.int32), place - (np.cumsum(used) - used)[panel]
    held = np.zeros((panels, n), dtype=bool)  # many times faster than sorting
    held[panel, column] = True
    used = np.count_nonzero(held, axis=1)
    rank = np.cumsum(held, axis=1, dtype=np.int32)[panel, column] - 1
    return used, np.nonzero(held)[1].astype(np.int32), rank


def expected_tiles(features: Features, height: int, width: int) -> float:
    """About how many tiles `Panels.of` makes, from features.

    The nonzeros are taken to lie anywhere in a part of each row that holds as many blocks as hold one, and rows side by
    side to have the same part, as in a band or in large blocks. Small full blocks that are scattered make more tiles.
    """
    if not features.nnz:
        return 0.0
    filled = features.block_fill  # of the part: blocks there that hold no nonzero make theirs seem fuller
    for _ in range(FILL_STEPS):
        filled = features.block_fill * -math.expm1(BLOCK * BLOCK * math.log1p(-min(filled, NEARLY_FULL)))
    part = min(float(features.k), features.row_mean / filled)
    columns = part * -math.expm1(height * math.log1p(-min(features.row_mean / part, NEARLY_FULL)))
    return ceil_div(features.m, height) * max(1, math.ceil(columns / width))
