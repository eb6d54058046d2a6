"""Nonzeros of dense matrices, found by rows that fit in a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparsegen.system.numpy_types import Array, NumpyType
from sparsegen.system.threads import in_threads

AT_ONCE = 1 << 18  # elements that a thread looks at together


def nonzeros_by_row(
    shape: tuple[int, int], read: Callable[[int, int], Array], dtype: NumpyType
) -> tuple[Array, Array, Array]:
    """Find what is not zero, NaN included, in threads.

    Args:
        read: gives the rows from one number up to another, of any real type; it is asked twice for each.
        dtype: type of the values.

    Returns:
        Offsets (int64), columns (int32) and values as in CSR.
    """
    m, k = shape
    rows = max(1, min(m, AT_ONCE // max(1, k)))
    begins = range(0, max(1, m), rows)
    lengths = in_threads(
        lambda first: np.count_nonzero(_is_held(read(first, min(m, first + rows))), axis=1), begins
    )
    offsets = np.zeros(m + 1, dtype=np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    columns, values = np.empty(offsets[-1], dtype=np.int32), np.empty(offsets[-1], dtype=dtype)
    column = np.tile(np.arange(k, dtype=np.int32), rows)

    def take(first: int) -> None:
        last = min(m, first + rows)
        part, to = read(first, last), slice(offsets[first], offsets[last])
        places = np.flatnonzero(_is_held(part))
        columns[to] = column.take(places)
        values[to] = part.reshape(-1).take(places)

    in_threads(take, begins)
    return offsets, columns, values


def _is_held(part: Array) -> Array:
    """True for each element that is not zero."""
    if part.dtype == np.float16:  # by all bits but the sign: NumPy is slow at this type
        return np.asarray(part.view(np.uint16) << 1 != 0)
    return np.asarray(part != 0)
