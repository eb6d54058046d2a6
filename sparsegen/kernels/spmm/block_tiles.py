"""Tiles of A that have nonzeros, stored whole and swizzled as warpgroups' tensor cores take them."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels.base import Constraint
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.tensor_tiles import places_of_tiles, stored_tiles, swizzled_places, tile_lengths
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.integers import ceil_div

TILE_K = 64  # columns of a stage's tiles of A; rows of 128 bytes, as the swizzled operands of wgmma need
HALF_K = TILE_K // 2  # columns of a narrow tile: half of a stage
CHUNK = 8  # elements of a 16-byte access
BLOCK_NAMES = ("row_blocks", "offsets", "panels", "values")  # names of the packed arrays


def whole_chunks(problem: SpmmProblem) -> Constraint:
    """Requires sizes of B and C that accesses of 16 bytes divide."""
    if problem.layout is Layout.ROW:
        return Constraint(
            problem.n % CHUNK == 0, f"rows of B and C ({problem.n}) are whole chunks of 16 bytes"
        )
    return Constraint(
        problem.k % CHUNK == 0 and problem.m % CHUNK == 0,
        f"columns of B ({problem.k}) and C ({problem.m}) are whole chunks of 16 bytes",
    )


def packed_blocks(problem: SpmmProblem, tile_m: int, tile_k: int, matrix: CsrMatrix) -> Packed[Array]:
    """Tiles of tile_m × tile_k elements of 16 bits, in stages of `TILE_K` columns by blocks of rows, those of most
    stages first.

    ``row_blocks`` names the blocks by rank, ``offsets`` says which stages each has, and ``panels`` where the tiles of
    each stage begin along k, in tiles, with one stage more than there are. Where a stage has two tiles, a last one
    without a partner has its own panel twice: zeros are multiplied there by rows of B that its block of rows meets
    anyway, so that an infinity or NaN in any other row of B changes nothing.

    Args:
        tile_k: `TILE_K` or `HALF_K`.

    Raises:
        MatrixError: the stored places pass the 32-bit range.
    """
    together, area = TILE_K // tile_k, tile_m * TILE_K
    held = tile_lengths(matrix, tile_m, tile_k) > 0
    counts = np.count_nonzero(held, axis=1)
    stages = ceil_div(counts, together)
    row_blocks = np.argsort(-stages, kind="stable").astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(stages[row_blocks])])
    first = np.empty_like(stages)  # tile of each block, if all stages before were full
    first[row_blocks] = offsets[:-1] * together
    tile = first[:, None] + np.cumsum(held, axis=1) - 1
    places = places_of_tiles(int(offsets[-1]), area)
    panels = np.zeros(together * (int(offsets[-1]) + 1), dtype=np.int32)
    panels[tile[held]] = np.nonzero(held)[1]
    alone = (first + counts)[counts % together > 0]
    panels[alone] = panels[alone - 1]
    begins = tile // together * area + tile % together * tile_k
    place_of = swizzled_places(tile_m, TILE_K, CHUNK).reshape(tile_m, TILE_K)[:, :tile_k]
    source, values = stored_tiles(matrix, begins, places, place_of, problem.dtype)
    return Packed(
        arrays={
            "row_blocks": empty_as_one(row_blocks),
            "offsets": offsets.astype(np.int32),
            "panels": panels,
            "values": values,
        },
        sizes={
            "row_block_count": row_blocks.size,
            **({"stored": source.size} if problem.value_sets > 1 else {}),
        },
        nnz=matrix.nnz,
        values="values",
        value_source=lambda: source,
    )
