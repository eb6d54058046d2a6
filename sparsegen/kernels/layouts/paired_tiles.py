"""Narrow tiles of A that have nonzeros, stored whole, two of a block of rows side by side in a pipeline stage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sparsegen.kernels.layouts.block_tiles import TILE_K, packed_blocks
from sparsegen.kernels.layouts.tensor_tiles import tile_lengths
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import SpmmProblem

HALF_K = TILE_K // 2  # columns of a narrow tile: half of a stage


def packed_pairs(problem: SpmmProblem, tile_m: int, matrix: CsrMatrix) -> Packed[Array]:
    """Tiles of tile_m × `HALF_K` elements in pairs, each pair laid out as one tile of `packed_blocks`.

    ``panels`` names two panels of `HALF_K` columns for every pair. A last tile without a partner has its own panel
    twice: zeros are multiplied there by rows of B that its block of rows meets anyway, so that an infinity or NaN in
    any other row of B changes nothing.

    Raises:
        MatrixError: the stored places pass the 32-bit range.
    """
    held = tile_lengths(matrix, tile_m, HALF_K) > 0
    packed = packed_blocks(problem, tile_m, _moved_together(matrix, held, tile_m))
    held = held[packed.arrays["row_blocks"][: len(held)]]
    counts = held.sum(axis=1)
    offsets = packed.arrays["offsets"].astype(np.int64)
    panels = np.zeros(2 * (offsets[-1] + 1), dtype=np.int32)  # one pair more, which is read ahead
    rank = np.cumsum(held, axis=1) - 1
    panels[(2 * offsets[:-1, None] + rank)[held]] = np.nonzero(held)[1]
    alone = (2 * offsets[:-1] + counts)[counts % 2 == 1]
    panels[alone] = panels[alone - 1]
    return replace(packed, arrays={**packed.arrays, "panels": panels})


def _moved_together(matrix: CsrMatrix, held: Array, tile_m: int) -> CsrMatrix:
    """The matrix with each block of rows' narrow tiles that have nonzeros moved to its first columns, in order."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.row_offsets))
    panel, within = np.divmod(matrix.column_indices, HALF_K)
    rank = np.cumsum(held, axis=1, dtype=np.int32) - 1
    columns = rank[rows // tile_m, panel] * HALF_K + within
    return CsrMatrix(matrix.shape, matrix.row_offsets, columns, matrix.values)
