"""Panels of rows and the columns that they use, cut to tiles: NumPy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsegen.features import BLOCK, GRID_PER_NONZERO, Features
from sparsegen.formats import Array, CsrMatrix


@dataclass(frozen=True, slots=True, eq=False)
class Panels:
    """A pattern as panels of rows, each cut to tiles of the columns that have a nonzero in it.

    Rows without nonzeros are in no panel. Lists are filled up by repeating their last entry, so that whoever follows
    them computes something that nobody asked for, and nothing undefined.

    Attributes:
        of_tile: int32, of each tile its panel; the tiles of a panel follow each other.
        rows: int32 [panels · height], row numbers.
        columns: int32 [tiles · width], column numbers, rising within a panel.
        starts: int32 [(tiles + panels) · height]. Tile t of panel p has its list at (t + p) · height: the number, in
            CSR order, of each row's first nonzero in the tile. They end where the next list says; behind a panel's last
            tile there is one more. Rows that fill up have none.
        places: int32, of each nonzero in CSR order the number of its column in its tile.
    """

    of_tile: Array
    rows: Array
    columns: Array
    starts: Array
    places: Array

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
            return cls(nothing, nothing, nothing, nothing, nothing)
        slot_of_row = np.zeros(lengths.size, dtype=np.int64)
        slot_of_row[rows] = np.arange(rows.size)
        slot = np.repeat(slot_of_row, lengths)
        panels = -(-rows.size // height)
        used, columns, rank = used_columns(slot // height, matrix.column_indices, panels, matrix.shape[1])

        tiles = -(-used // width)
        first_tile = np.cumsum(tiles) - tiles
        # A panel's columns fill its tiles but for the last places, which repeat the last column.
        place = np.arange(int(tiles.sum()) * width) - np.repeat(first_tile * width, tiles * width)
        begins = np.cumsum(used) - used
        listed = np.repeat(begins, tiles * width) + np.minimum(place, np.repeat(used - 1, tiles * width))

        # Nonzeros of each row by tile, one list late: added up they tell where those of the next tile begin.
        lists = first_tile + np.arange(panels)
        at = (lists[slot // height] + rank // width + 1) * height + slot % height
        counts = np.bincount(at, minlength=(int(tiles.sum()) + panels) * height).reshape(-1, height)
        before = np.cumsum(counts, axis=0)
        filled = np.zeros(panels * height, dtype=np.int64)
        filled[: rows.size] = offsets[rows]
        correction = filled.reshape(panels, height) - before[lists]
        starts = before + np.repeat(correction, tiles + 1, axis=0)
        return cls(
            of_tile=np.repeat(np.arange(panels, dtype=np.int32), tiles),
            rows=rows[np.minimum(np.arange(panels * height), rows.size - 1)].astype(np.int32),
            columns=columns[listed],
            starts=starts.astype(np.int32).ravel(),
            places=(rank % width).astype(np.int32),
        )


def used_columns(panel: Array, column: Array, panels: int, n: int) -> tuple[Array, Array, Array]:
    """The columns of each panel that hold a nonzero.

    Args:
        panel, column: of each nonzero.

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

    Within the blocks that hold a nonzero, the others are taken to lie anywhere; and so are the columns that 16 rows
    use, among those that more rows use. For patterns whose neighbouring rows are alike that is more than there are.
    """
    if not features.nnz:
        return 0.0
    fill = features.block_fill
    in_strip = fill / (1 - (1 - fill) ** BLOCK)  # of the places of columns used by 16 rows
    share = min(1.0, features.row_mean / (in_strip * features.k))
    columns = features.k * (1 - (1 - share) ** (height / BLOCK))
    return -(-features.m // height) * max(1, math.ceil(columns / width))
