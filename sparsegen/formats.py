"""Sparse containers, validated once on construction, so that no unchecked index ever reaches a kernel."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from sparsegen.errors import MatrixError

Array = npt.NDArray[Any]
MAX_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class CsrMatrix:
    """Compressed sparse rows: sorted, unique column indices in every row.

    Attributes:
        shape: (rows, columns), each below 2³¹.
        row_offsets: int32, rows + 1.
        column_indices: int32, nnz.
        values: floating point, nnz.

    Raises:
        MatrixError: an invariant does not hold; the message names the row and the nonzero.
    """

    shape: tuple[int, int]
    row_offsets: Array
    column_indices: Array
    values: Array

    @property
    def nnz(self) -> int:
        return int(self.values.shape[0])

    def to_scipy(self) -> scipy.sparse.csr_array:
        return scipy.sparse.csr_array((self.values, self.column_indices, self.row_offsets), shape=self.shape)

    def with_values(self, values: Array) -> CsrMatrix:
        """The same pattern with other values (nnz of them)."""
        if values.shape != self.values.shape:
            raise MatrixError(f"expected {self.nnz} values on this pattern, got shape {values.shape}")
        return replace(self, values=values)

    def fingerprint(self) -> str:
        """SHA-256 of the pattern (shape, offsets, indices); values do not enter."""
        digest = hashlib.sha256(repr(self.shape).encode())
        digest.update(np.ascontiguousarray(self.row_offsets, dtype="<i4").tobytes())
        digest.update(np.ascontiguousarray(self.column_indices, dtype="<i4").tobytes())
        return digest.hexdigest()
