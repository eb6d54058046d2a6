"""Places of packed matrices, those without a nonzero included: NumPy only."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType


def empty_as_padding(source: Array) -> Array:
    """The places in one dimension; of none, one of padding, so that no packed array is empty."""
    return source.ravel() if source.size else np.full(1, -1, dtype=np.int32)


def stored_values(matrix: CsrMatrix, source: Array, dtype: DType) -> Array:
    """The value of each place in storage form; zero in the padding.

    Args:
        source: for each place the nonzero's number in CSR order, or -1.
    """
    values = np.empty(matrix.nnz + 1, dtype=dtype.storage)
    values[:-1] = dtype.to_storage(matrix.values)
    values[-1] = 0  # found by number -1
    found: Array = values[source]
    return found
