"""Layout of the tiles of A that tensor cores multiply, and the rule for storing them whole: NumPy only."""

from __future__ import annotations

import math

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.kernels.base import Constraint
from sparsegen.kernels.spmm.strips import Strip, by_strips
from sparsegen.matrix.features import BLOCK, Features
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.operators import DType
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

STEP = 8  # nonzeros per load
BATCH = WARP * STEP  # nonzeros that a warp loads at once
MOSTLY_FULL = 0.5  # fill of blocks from which on whole tiles are the better choice
LEAST_FILL = 0.15  # fill of blocks at which whole tiles take at most a few times the bytes of CSR
USUAL_SIDE, WIDEST_SIDE = 64.0, 128.0  # sides of blocks
SURE = 3.0  # standard deviations within which the width of blocks is known by the lengths of rows
WHOLE = 0.99  # fraction of full blocks from which on they lie on a grid of their own
MOST_PLACES = MAX_INDEX - (1 << 18)  # so that no thread's next step passes 32 bits


def fills_blocks(features: Features) -> bool:
    """True if tiles are better stored whole."""
    return features.block_fill >= MOSTLY_FULL


def block_side(features: Features) -> float:
    """About how wide the blocks of a pattern of full blocks are that lie anywhere.

    A row's length then varies as the number of its blocks does, and that the more the fewer and wider they are. Of few
    blocks of rows that is known within a factor of two, of many better; whole blocks also divide the longest row and
    all nonzeros, which tells their width where it is a power of two. Where rows are alike, which blocks in other
    orders may be too, a width between.
    """
    held = min(0.99, features.density / features.block_fill) if features.block_fill else 0.0
    if not features.row_cov:
        return USUAL_SIDE
    side = features.row_cov**2 * features.k * held / (1 - held)
    side = min(WIDEST_SIDE, max(float(BLOCK), side))
    if features.block_fill < WHOLE:
        return side
    most = side * min(2.0, 1.0 + SURE * math.sqrt(2.0 * side / max(1, features.m)))
    divide = (w for w in (128, 64, 32, BLOCK) if not (features.row_max % w or features.nnz % w**2))
    return float(next((w for w in divide if w <= most), side))  # blocks at the edges are cut off, maybe


def held_share(features: Features, height: int, width: int) -> float:
    """About which share of a pattern's tiles hold a nonzero, if its blocks, or its nonzeros, lie anywhere."""
    if not fills_blocks(features):
        return -math.expm1(height * width * math.log1p(-min(features.density, 1 - 1e-9)))
    held = min(1 - 1e-9, features.density / features.block_fill)
    side = block_side(features)
    blocks = max(1.0, height / side) * max(1.0, width / side)  # blocks that a tile overlaps
    return -math.expm1(blocks * math.log1p(-held))


def whole_tiles_requirement(features: Features) -> Constraint:
    """Requires nonzeros in blocks, so that tiles stored whole represent the matrix sensibly."""
    return Constraint(
        features.block_fill >= LEAST_FILL,
        f"whole tiles want {LEAST_FILL:.0%} or more of nonzeros in blocks of 16 by 16 ({features.block_fill:.1%})",
    )


def swizzled_places(tile_m: int, tile_k: int, chunk: int) -> Array:
    """Position of each element of a tile, row by row, in shared memory (uint16), swizzled as in ``lib/swizzle``.

    Args:
        chunk: elements of a 16-byte access.
    """
    length = min(tile_k, 8 * chunk)  # length of a block's row
    chunks = length // chunk
    row, column = np.divmod(np.arange(tile_m * tile_k), tile_k)
    block, within = np.divmod(column, length)
    swizzled = within // chunk ^ (row // (8 // chunks) & (chunks - 1))
    place: Array = (block * tile_m + row) * length + swizzled * chunk + column % chunk
    return place.astype(np.uint16)


def tile_lists(lengths: Array, step: int) -> tuple[Array, Array]:
    """Lists the tiles with nonzeros of each block of rows.

    Args:
        lengths: for each block and panel the number of stored elements: nonzeros, or 1 for a tile.
        step: pads lengths to its multiples.

    Returns:
        Their number by block (int32), and (panel, where in what is stored it begins) of each in the order of the
        columns, then the end of the last one's, in ``panels + 1`` places a block (int32).
    """
    blocks, panels = lengths.shape
    padded = round_up(lengths.astype(np.int64), step)
    ends = np.cumsum(padded).reshape(blocks, panels)
    counts = (lengths > 0).sum(axis=1)
    panel = np.argsort(lengths == 0, axis=1, kind="stable")  # those with nonzeros first
    tiles = np.zeros((blocks, panels + 1, 2), dtype=np.int32)
    tiles[:, :panels, 0] = panel
    tiles[:, :panels, 1] = np.take_along_axis(ends - padded, panel, axis=1)
    behind = np.arange(panels + 1) >= counts[:, None]
    tiles[..., 1][behind] = np.broadcast_to(ends[:, -1:], behind.shape)[behind]
    return counts.astype(np.int32), tiles.ravel()


def tile_lengths(matrix: CsrMatrix, tile_m: int, tile_k: int) -> Array:
    """Nonzeros by tile: blocks of rows × panels of columns."""
    panels = max(1, ceil_div(matrix.shape[1], tile_k))
    panel = np.arange(matrix.shape[1]) // tile_k

    def counted(strip: Strip) -> Array:
        tile = strip.each(np.arange(strip.shape[0]) // tile_m * panels)
        tile += panel[strip.column_indices]
        return np.bincount(tile, minlength=ceil_div(strip.shape[0], tile_m) * panels)

    return np.concatenate(by_strips(matrix, tile_m, counted)).reshape(-1, panels)


def stored_begins(lengths: Array, area: int) -> tuple[Array, int]:
    """Returns where each tile with nonzeros begins (int64) if they are stored whole in sequence, and the places of all.

    Args:
        lengths: nonzeros by block of rows and panel, in the order in which they are stored.
        area: elements of a tile.

    Raises:
        MatrixError: the places pass the 32-bit range.
    """
    occupied = lengths > 0
    begins = (np.cumsum(occupied).reshape(lengths.shape) - 1) * area
    return begins, places_of_tiles(int(np.count_nonzero(occupied)), area)


def places_of_tiles(count: int, area: int) -> int:
    """Returns the places of ``count`` tiles of ``area`` elements.

    Raises:
        MatrixError: they pass the 32-bit range.
    """
    if count * area > MOST_PLACES:
        raise MatrixError(
            f"{count} tiles of {area} elements are more than {MOST_PLACES}; split the matrix by rows"
        )
    return count * area


def stored_tiles(
    matrix: CsrMatrix, begins: Array, places: int, place_of: Array, dtype: DType
) -> tuple[Array, Array]:
    """The tiles that have nonzeros, whole: of each place its nonzero's number in CSR order or -1 (int32), and its value
    in storage form.

    A place is exclusive or of three: where the tile begins, and where its row and its column would be alone.

    Args:
        begins: first places, by block of rows from above and panel; see `stored_begins`.
        places: number of places of all tiles; without any there is one of padding.
        place_of: tile_m × tile_k, of each element of a tile its place in the tile, as of `swizzled_places`.
    """
    source = np.full(max(1, places), -1, dtype=np.int32)
    values = np.zeros(source.size, dtype=dtype.storage)
    (tile_m, tile_k), (k, panels) = place_of.shape, (matrix.shape[1], begins.shape[1])
    panel = np.arange(k) // tile_k
    of_row, of_column = place_of[:, 0].astype(np.int64), np.resize(place_of[0].astype(np.int64), k)

    def lay(strip: Strip) -> None:
        row, columns = np.arange(strip.shape[0]), strip.column_indices
        first, blocks = strip.first_row // tile_m, ceil_div(strip.shape[0], tile_m)
        if blocks * k <= columns.size:  # then one table of all columns of each block
            begins_of_columns = begins[first : first + blocks, panel] ^ of_column
            at = begins_of_columns.ravel()[strip.each(row // tile_m * k) + columns]
        else:
            at = begins.ravel()[strip.each((row // tile_m + first) * panels) + panel[columns]]
            at ^= of_column[columns]
        at ^= strip.each(of_row[row % tile_m])
        source[at] = np.arange(strip.begins, strip.begins + at.size, dtype=np.int32)
        values[at] = dtype.to_storage(matrix.values[strip.nonzeros])

    by_strips(matrix, tile_m, lay)
    return source, values


def padded_places(lengths: Array) -> Array:
    """Places of each tile's nonzeros, in whole steps.

    Raises:
        MatrixError: all of them pass the 32-bit range of the kernel's offsets.
    """
    padded: Array = round_up(lengths, STEP)
    total = int(padded.sum())
    if total > MOST_PLACES:
        raise MatrixError(
            f"{int(lengths.sum())} nonzeros take {total} places, more than 32-bit offsets reach ({MOST_PLACES}); "
            "split the matrix by rows"
        )
    return padded


def stored_nonzeros(
    matrix: CsrMatrix, lengths: Array, tile_m: int, tile_k: int, place_of: Array, dtype: DType
) -> tuple[Array, Array, Array]:
    """The nonzeros tile by tile, as `interleaved_nonzeros` has them: of each stored one its number in CSR order or -1
    (int32), its place in the tile (uint16), and its value in storage form; without any there is one of padding.

    Args:
        lengths: nonzeros by tile.
        place_of: for each element of a tile, row by row, its place.

    Raises:
        MatrixError: padded, the nonzeros pass the 32-bit range of the kernel's offsets.
    """
    padded_places(lengths)  # checks the sum over all strips
    panels = max(1, ceil_div(matrix.shape[1], tile_k))
    panel, within = np.divmod(np.arange(matrix.shape[1], dtype=np.int32), tile_k)

    def lay(strip: Strip) -> tuple[Array, Array, Array]:
        block, row = np.divmod(np.arange(strip.shape[0], dtype=np.int32), tile_m)
        tile = strip.each(block * panels)
        tile += panel[strip.column_indices]
        tiles = ceil_div(strip.shape[0], tile_m) * panels
        few = tile.astype(np.uint16) if tiles <= 1 << 16 else tile  # sorted by their digits
        order = np.argsort(few, kind="stable").astype(np.int32)
        element = (strip.each(row * tile_k) + within[strip.column_indices])[order]
        local, element = interleaved_nonzeros(np.bincount(tile, minlength=tiles), order, element)
        own = matrix.values[strip.nonzeros]
        values = dtype.to_storage(
            np.where(local >= 0, own[local], 0) if own.size else local.astype(own.dtype)
        )
        return np.where(local >= 0, local + np.int32(strip.begins), np.int32(-1)), place_of[element], values

    source, places, values = (
        np.concatenate(parts) for parts in zip(*by_strips(matrix, tile_m, lay), strict=True)
    )
    if not source.size:
        return np.full(1, -1, dtype=np.int32), places, np.zeros(1, dtype=dtype.storage)
    return source, places, values


def interleaved_nonzeros(lengths: Array, order: Array, element: Array) -> tuple[Array, Array]:
    """The nonzeros tile by tile, each tile filled to whole steps with zeros at places where it has no nonzero.

    Neighbours in a tile go to neighbouring lanes, not to one: what a warp stores at once then lies in one or a few
    rows, mostly in different banks.

    Args:
        lengths: nonzeros by tile.
        order: the nonzeros' numbers in CSR order, sorted by tile.
        element: for each of these its row-major number in the tile, rising within a tile.

    Returns:
        int32 both: for each place the nonzero's number in CSR order or -1, and its row-major number in the tile.

    Raises:
        MatrixError: padded, the nonzeros pass the 32-bit range of the kernel's offsets.
    """
    padded = padded_places(lengths)
    total = int(padded.sum())
    starts, begins = np.cumsum(lengths) - lengths, np.cumsum(padded) - padded
    lengths, padded, starts, begins = (a.astype(np.int32) for a in (lengths, padded, starts, begins))
    source, elements = np.full(total, -1, dtype=np.int32), np.zeros(total, dtype=np.int32)
    rank = np.arange(order.size, dtype=np.int32) - np.repeat(starts, lengths)
    place = np.repeat(begins, lengths) + _interleaved_rank(rank, np.repeat(padded, lengths))
    source[place], elements[place] = order, element
    # The j-th element without a nonzero comes behind the nonzeros that lie at most j places above their rank.
    # Within a tile that distance never falls, so that one sorted array tells their number for all tiles.
    farthest = int(element.max(initial=0)) + 1
    distance = np.repeat(np.arange(lengths.size, dtype=np.int64) * farthest, lengths) + (element - rank)
    for j in range(STEP - 1):
        tile = np.flatnonzero(padded - lengths > j)
        behind = np.searchsorted(distance, tile * farthest + j, side="right") - starts[tile]
        place = begins[tile] + _interleaved_rank(lengths[tile] + j, padded[tile])
        elements[place] = behind + j
    return source, elements


def _interleaved_rank(rank: Array, padded: Array) -> Array:
    """Position, among a tile's places, of the nonzero with a given rank.

    A warp takes up to 256 at a time: each lane takes one in turn until each has a step of 8.

    Args:
        rank, padded: int32; of each nonzero its rank in its tile, and the tile's places.
    """
    place: Array = rank & -BATCH | (rank % WARP) * STEP | rank % BATCH // WARP
    last = np.flatnonzero(rank >= (padded & -BATCH))  # in a batch that does not fill all lanes
    within, lanes = rank[last] % BATCH, padded[last] % BATCH // STEP
    place[last] = (rank[last] & -BATCH) + within % lanes * STEP + within // lanes
    return place
