"""Features of a matrix, as dispatch sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from sparsegen.matrix.formats import CsrMatrix
from sparsegen.system.compared import Compared
from sparsegen.system.integers import ceil_div
from sparsegen.system.threads import in_threads

BLOCK = 16
NONZEROS_AT_ONCE = 1 << 18  # a thread counts their blocks at a time: they fit in a cache
FEW_PARTS = 4  # one thread counts so many before others have begun
GRID_PER_NONZERO = 16  # bytes of a grid that are worth as much as sorting a nonzero


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Features(Compared):
    """Features of a sparsity pattern.

    Attributes:
        row_mean, row_cov, row_max: mean, coefficient of variation (standard deviation over mean, 0 for an
            empty matrix) and maximum of the rows' lengths.
        block_fill: nonzeros over the area of the 16 × 16 blocks that hold any; 0 for an empty matrix.
        shared_fill: nonzeros over the area of 16 × 16 tiles of rows that share columns, wherever these stand; 0 where
            rows share none, where no family would use it, and of what a database holds: it is not stored.
        two_four: no four columns of a row hold more than two nonzeros; False where no family would use it, and of what
            a database holds.
        chosen_of: M of V:N:M sparsity: each block of rows needs four of every M columns; 0 likewise.
    """

    m: int
    k: int
    nnz: int
    row_mean: float
    row_cov: float
    row_max: int
    block_fill: float
    shared_fill: float = field(default=0.0, compare=False)
    two_four: bool = field(default=False, compare=False)
    chosen_of: int = field(default=0, compare=False)

    @property
    def density(self) -> float:
        return self.nnz / (self.m * self.k) if self.m and self.k else 0.0

    def stored(self) -> dict[str, int | float]:
        """Returns the features that databases and files hold, by name."""
        return {name: getattr(self, name) for name in STORED}

    @classmethod
    def of(cls, matrix: CsrMatrix) -> Features:
        """The features of a matrix's pattern, which are worked out once."""
        return matrix.known("features", lambda: cls._of(matrix))

    @classmethod
    def _of(cls, matrix: CsrMatrix) -> Features:
        m, k = matrix.shape
        lengths = np.diff(matrix.row_offsets)
        mean = float(lengths.mean()) if m else 0.0
        blocks = occupied_blocks(matrix, BLOCK)
        return cls(
            m=m,
            k=k,
            nnz=matrix.nnz,
            row_mean=mean,
            row_cov=float(lengths.std()) / mean if mean else 0.0,
            row_max=int(lengths.max()) if m else 0,
            block_fill=matrix.nnz / (blocks * BLOCK * BLOCK) if blocks else 0.0,
        )


STORED = tuple(one.name for one in fields(Features) if one.compare)


def occupied_blocks(matrix: CsrMatrix, size: int) -> int:
    """Number of size × size blocks of an aligned grid that hold a nonzero."""
    m = matrix.shape[0]
    parts = max(1, ceil_div(matrix.nnz, NONZEROS_AT_ONCE))
    rows = max(1, ceil_div(m, size * parts)) * size
    threads = 1 if parts <= FEW_PARTS else None
    return sum(in_threads(lambda first: _occupied(matrix, size, first, rows), range(0, m, rows), threads))


def _occupied(matrix: CsrMatrix, size: int, first: int, rows: int) -> int:
    """Number of such blocks in ``rows`` rows, whose first one begins a block."""
    offsets = matrix.row_offsets[first : first + rows + 1]
    columns = matrix.column_indices[offsets[0] : offsets[-1]]
    m, k = offsets.size - 1, matrix.shape[1]
    height, width = ceil_div(m, size), ceil_div(k, size)
    begins = np.arange(m, dtype=np.int64) // size * width
    blocks = np.repeat(begins, np.diff(offsets))
    blocks += columns // size
    if height * width > GRID_PER_NONZERO * columns.size:
        return int(np.unique(blocks).size)
    held = np.zeros(height * width, dtype=bool)  # many times faster than sorting
    held[blocks] = True
    return int(np.count_nonzero(held))
