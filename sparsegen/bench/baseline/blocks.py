"""Dense blocks of a sparse matrix: where there are any, and the matrix cut into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import BLOCK, Features, occupied_blocks
from sparsegen.system.numpy_types import Array

SIZES = (16, 32, 64, 128)
LEAST_FEATURE_FILL = 0.9  # fill of 16 × 16 blocks; below it the zeros between make block formats a detour
LEAST_FILL = 0.4  # fill of larger blocks: bigger blocks pay for up to this share of zeros

NO_BLOCKS = (
    f"the pattern has no dense blocks (the {BLOCK} × {BLOCK} ones are not {LEAST_FEATURE_FILL:.0%} full)"
)


def has_blocks(features: Features) -> bool:
    """True if the nonzeros come in dense blocks, and not because nearly all of the matrix is nonzero."""
    return features.block_fill >= LEAST_FEATURE_FILL and features.density < LEAST_FEATURE_FILL


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A matrix in block compressed sparse rows.

    Attributes:
        offsets: int32, block rows + 1; columns: int32, of each block; values: float32, blocks × size × size.
    """

    size: int
    offsets: Array
    columns: Array
    values: Array


def block_sizes(matrix: CsrMatrix) -> list[int]:
    """Sizes that divide the matrix and whose blocks are full enough, the fullest first, then the largest."""
    m, k = matrix.shape
    fills = {size: fill(matrix, size) for size in SIZES if m % size == 0 and k % size == 0}
    return sorted((s for s, f in fills.items() if f >= LEAST_FILL), key=lambda s: (-round(fills[s], 2), -s))


def fill(matrix: CsrMatrix, size: int) -> float:
    """Nonzeros over the area of the blocks that hold any; 0 for an empty matrix."""
    count = occupied_blocks(matrix, size)
    return matrix.nnz / (count * size * size) if count else 0.0


def cut(matrix: CsrMatrix, size: int) -> Blocks:
    """A matrix in blocks of a size that divides it."""
    bsr: Any = matrix.to_scipy().tobsr((size, size))
    bsr.sort_indices()
    return Blocks(size, bsr.indptr.astype(np.int32), bsr.indices.astype(np.int32), bsr.data)
