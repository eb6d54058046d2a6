"""V:N:M sparsity: for blocks of rows four of every M columns are chosen, and a row has at most two nonzeros in them."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

ROWS = 32  # of a block
CHOSEN = 4
OF = (16, 8)  # columns of which they are chosen


def chosen_of(matrix: CsrMatrix) -> int:
    """Returns the largest M for which each block of rows needs four of every M columns; 0 if there is none, and of
    matrices that would be filled with more zeros than nonzeros. It is found once for each pattern, of most others in
    their first rows.
    """
    return matrix.known("chosen_of", lambda: next((of for of in OF if _suits(matrix, of)), 0))


def _suits(matrix: CsrMatrix, of: int) -> bool:
    m, k = matrix.shape
    groups = ceil_div(k, of)
    if not max(1, m * groups) <= matrix.nnz <= 2 * m * groups:
        return False
    for rows in (min(ROWS, m), m):
        row, column = _places(matrix, rows)
        group = row * groups + column // of  # which rises: three of one stand next to each other
        if np.any(group[2:] == group[:-2]) or used_columns(matrix, of, rows).sum(axis=2).max() > CHOSEN:
            return False
    return True


def used_columns(matrix: CsrMatrix, of: int, rows: int) -> Array:
    """Booleans [blocks of the first rows, groups of columns, of]: true if a row of the block has a nonzero there."""
    blocks, groups = ceil_div(rows, ROWS), ceil_div(matrix.shape[1], of)
    row, column = _places(matrix, rows)
    used = np.zeros((blocks, groups * of), dtype=bool)
    used[row // ROWS, column] = True
    return used.reshape(blocks, groups, of)


def _places(matrix: CsrMatrix, rows: int) -> tuple[Array, Array]:
    """Rows and columns of the nonzeros in the first rows."""
    offsets = matrix.row_offsets[: rows + 1]
    row = np.repeat(np.arange(rows, dtype=np.int64), np.diff(offsets))
    return row, matrix.column_indices[: offsets[-1]].astype(np.int64)
