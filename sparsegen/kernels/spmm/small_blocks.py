"""Blocks of 32 × 32 elements of A that have nonzeros, stored whole and swizzled, by tiles of rows and panels."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.tensor_tiles import places_of_tiles, stored_tiles, swizzled_places, tile_lengths
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import SpmmProblem
from sparsegen.system.integers import ceil_div

SIDE = 32  # rows and columns of a block
AREA = SIDE * SIDE
CHUNK = 8  # elements of a 16-byte access
TOGETHER = 2  # panels of a stage
MASK_BITS = 8  # most rows of blocks of a tile
SMALL_BLOCK_NAMES = ("row_tiles", "offsets", "steps", "values")  # names of the packed arrays


def packed_small_blocks(problem: SpmmProblem, tile_m: int, matrix: CsrMatrix) -> Packed[Array]:
    """Blocks of 32 × 32 elements of 16 bits by tiles of ``tile_m`` rows, those of most work first.

    ``row_tiles`` names the tiles by rank, ``offsets`` says which stages each has. A stage is two panels of 32 columns
    in which the tile has blocks, the last one of a tile perhaps one. Of each, ``steps`` has four numbers, with
    one stage more than there are: the panels, a mask of 8 bits for each of the rows of blocks that lie in it, and the
    number of the first stored block. Blocks are stored in this order, and from above in a panel.

    Args:
        tile_m: a multiple of 32, up to 256.

    Raises:
        MatrixError: the stored places pass the 32-bit range.
    """
    blocks = tile_m // SIDE
    lengths = tile_lengths(matrix, SIDE, SIDE)
    block_rows, panels = lengths.shape
    tiles = ceil_div(block_rows, blocks)
    padded = np.zeros((tiles * blocks, panels), dtype=bool)
    padded[:block_rows] = lengths > 0
    held = padded.reshape(tiles, blocks, panels).transpose(0, 2, 1)  # by tile, panel and row of blocks
    met = np.any(held, axis=2)
    work = np.count_nonzero(held, axis=(1, 2)) + np.count_nonzero(met, axis=1)
    row_tiles = np.argsort(-work, kind="stable").astype(np.int32)
    held, met = held[row_tiles], met[row_tiles]
    numbers = np.cumsum(held).reshape(held.shape) - 1
    offsets = np.concatenate([[0], np.cumsum(ceil_div(np.count_nonzero(met, axis=1), TOGETHER))])
    rank, panel = np.nonzero(met)
    place = (np.cumsum(met, axis=1) - 1)[met]  # place of a panel among its tile's
    stage, slot = offsets[rank] + place // TOGETHER, place % TOGETHER
    of_panel = held[rank, panel]
    masks = of_panel @ (1 << np.arange(blocks)) if of_panel.size else np.zeros(0, dtype=np.int64)
    steps = np.zeros((int(offsets[-1]) + 1, TOGETHER + 2), dtype=np.int32)
    steps[stage, slot] = panel
    np.add.at(steps[:, TOGETHER], stage, (masks << MASK_BITS * slot).astype(np.int32))
    ends = np.cumsum(np.count_nonzero(of_panel, axis=1))
    first = slot == 0
    steps[stage[first], TOGETHER + 1] = (ends - np.count_nonzero(of_panel, axis=1))[first]
    begins = np.zeros((tiles, blocks, panels), dtype=np.int64)
    begins[row_tiles] = numbers.transpose(0, 2, 1) * AREA
    places = places_of_tiles(int(np.count_nonzero(held)), AREA)
    place_of = swizzled_places(SIDE, SIDE, CHUNK).reshape(SIDE, SIDE)
    source, values = stored_tiles(
        matrix, begins.reshape(-1, panels)[:block_rows], places, place_of, problem.dtype
    )
    return Packed(
        arrays={
            "row_tiles": empty_as_one(row_tiles),
            "offsets": offsets.astype(np.int32),
            "steps": steps.ravel(),
            "values": values,
        },
        sizes={"row_tile_count": row_tiles.size},
        nnz=matrix.nnz,
        values="values",
        value_source=lambda: source,
    )
