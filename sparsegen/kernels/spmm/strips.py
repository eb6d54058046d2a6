"""A matrix in strips of whole rows of tiles, which are laid out side by side: what is made of one fits in a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.threads import in_threads

NONZEROS = 1 << 18  # nonzeros of a strip, about

T = TypeVar("T")


class Strip(NamedTuple):
    """Some rows of a matrix.

    Attributes:
        shape: its rows, and the matrix's columns.
        first_row: its first row in the matrix, a multiple of a tile's height.
        begins: the number of its first nonzero.
        row_offsets: int32, as in CSR, from 0 on.
        column_indices: int32.
    """

    shape: tuple[int, int]
    first_row: int
    begins: int
    row_offsets: Array
    column_indices: Array

    @property
    def lengths(self) -> Array:
        """Number of nonzeros in each of its rows."""
        found: Array = np.diff(self.row_offsets)
        return found

    @property
    def nonzeros(self) -> slice:
        """The slice of its nonzeros in the matrix's arrays."""
        return slice(self.begins, self.begins + self.column_indices.size)

    def each(self, of_row: Array) -> Array:
        """Repeats a value of each row for each of its nonzeros."""
        found: Array = np.repeat(of_row, self.lengths)
        return found


def by_strips(
    matrix: CsrMatrix, height: int, work: Callable[[Strip], T], elements: int | None = None
) -> list[T]:
    """Calls ``work`` for all strips of a matrix, in threads, and returns the results from top to bottom.

    Args:
        height: rows of a tile; strips begin at tiles.
        elements: zeros and nonzeros of a strip, about, if its zeros take memory too.
    """
    m, k = matrix.shape
    tiles = max(1, ceil_div(m, height))
    of_strip = ceil_div(tiles * NONZEROS, max(1, matrix.nnz))
    if elements is not None:
        of_strip = min(of_strip, ceil_div(elements, max(1, height * k)))
    each = height * max(1, of_strip)  # rows of a strip
    strips = [_strip(matrix, first, min(m, first + each), k) for first in range(0, max(1, m), each)]
    return in_threads(work, strips)


def _strip(matrix: CsrMatrix, first: int, last: int, k: int) -> Strip:
    offsets = matrix.row_offsets[first : last + 1]
    columns = matrix.column_indices[offsets[0] : offsets[-1]]
    return Strip((last - first, k), first, int(offsets[0]), offsets - offsets[0], columns)
