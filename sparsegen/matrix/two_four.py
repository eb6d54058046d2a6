"""2:4 sparsity: no four neighbouring columns of a row, counted from its start, hold more than two nonzeros."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.integers import ceil_div

LEAST_DENSITY = 1 / 4  # with fewer nonzeros more than half of two values for every four columns are zeros
AT_ONCE = 1 << 18  # nonzeros that are looked at together: they fit in a cache


def is_two_four(matrix: CsrMatrix) -> bool:
    """True of a matrix with 2:4 sparsity; found once for each pattern, of most others in their first rows."""
    return matrix.known("is_two_four", lambda: _is_two_four(matrix))


def _is_two_four(matrix: CsrMatrix) -> bool:
    offsets, columns = matrix.row_offsets, matrix.column_indices
    if matrix.nnz > 2 * matrix.shape[0] * ceil_div(matrix.shape[1], 4):
        return False
    for first in range(0, columns.size, AT_ONCE):
        fours = columns[first : first + AT_ONCE + 2] // 4
        # Columns rise in a row: three of one four stand next to each other, or belong to two rows.
        found = first + np.flatnonzero(fours[2:] == fours[:-2])
        rows = (np.searchsorted(offsets, place, side="right") for place in (found, found + 2))
        if np.any(np.equal(*rows)):
            return False
    return True
