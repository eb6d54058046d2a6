"""Tiles of A that have nonzeros, stored whole and swizzled as warpgroups' tensor cores take them."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels.base import Constraint
from sparsegen.kernels.layouts.tensor_tiles import (
    stored_begins,
    stored_tiles,
    swizzled_places,
    tile_lengths,
)
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem

TILE_K = 64  # columns of a tile of A; rows of 128 bytes, as the swizzled operands of wgmma need
CHUNK = 8  # elements of a 16-byte access
BLOCK_NAMES = ("row_blocks", "offsets", "panels", "values")  # of the packed arrays


def whole_chunks(problem: SpmmProblem) -> Constraint:
    """What accesses of 16 bytes to B and C need of their sizes."""
    if problem.layout is Layout.ROW:
        return Constraint(
            problem.n % CHUNK == 0, f"rows of B and C ({problem.n}) are whole chunks of 16 bytes"
        )
    return Constraint(
        problem.k % CHUNK == 0 and problem.m % CHUNK == 0,
        f"columns of B ({problem.k}) and C ({problem.m}) are whole chunks of 16 bytes",
    )


def packed_blocks(problem: SpmmProblem, tile_m: int, matrix: CsrMatrix) -> Packed[Array]:
    """Tiles of tile_m × `TILE_K` elements of 16 bits by blocks of rows, those of most tiles first.

    ``row_blocks`` names the blocks by rank, ``offsets`` says which tiles each has, and ``panels`` where these begin
    along k, in tiles, with one entry more than there are tiles.
    """
    lengths = tile_lengths(matrix, tile_m, TILE_K)
    row_blocks = np.argsort(-(lengths > 0).sum(axis=1), kind="stable").astype(np.int32)
    lengths = lengths[row_blocks]
    begins = np.empty(lengths.shape, dtype=np.int64)
    begins[row_blocks], places = stored_begins(lengths, tile_m * TILE_K)
    place_of = swizzled_places(tile_m, TILE_K, CHUNK)
    source, values = stored_tiles(matrix, begins, places, tile_m, TILE_K, place_of, problem.dtype)
    return Packed(
        arrays={
            "row_blocks": empty_as_one(row_blocks),
            "offsets": np.concatenate([[0], np.cumsum((lengths > 0).sum(axis=1))]).astype(np.int32),
            "panels": np.append(np.nonzero(lengths)[1], 0).astype(np.int32),
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
