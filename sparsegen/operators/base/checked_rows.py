"""The part of a result that the host computes again after a device checked it (`Problem.lone_row`)."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.numpy_types import Array

CHECKED_COLUMNS = 64  # columns of a row that are computed again


def row_alone(matrix: CsrMatrix, row: int, most: int | None = None) -> tuple[CsrMatrix, slice]:
    """A row as a matrix without the columns that it leaves empty, and which nonzeros these are.

    Args:
        most: nonzeros, of a longer row the first.
    """
    begin, end = int(matrix.row_offsets[row]), int(matrix.row_offsets[row + 1])
    part = slice(begin, end if most is None else min(end, begin + most))
    length = part.stop - part.start
    return CsrMatrix((1, length), np.array([0, length]), np.arange(length), matrix.values[part]), part


def some_columns(count: int, rng: np.random.Generator) -> Array:
    """Draws the columns of a row that `Problem.lone_row` computes again, in rising order."""
    return np.sort(rng.choice(count, size=min(count, CHECKED_COLUMNS), replace=False))
