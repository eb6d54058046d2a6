"""Constraints on loads that several families share, in the same words."""

from __future__ import annotations

from functools import lru_cache

from sparsegen.kernels.base import Constraint
from sparsegen.operators import DType

LOAD_BYTES = 16  # bytes of the widest load
SHORT_INDICES = 1 << 16  # columns that indices of 16 bits can name


@lru_cache(maxsize=1024)  # a search asks for each of its configs
def widest_vector(row_length: int, dtype: DType) -> int:
    """Elements that one load can hold: up to 16 bytes, aligned in every row."""
    return max(v for v in (1, 2, 4, 8) if v * dtype.itemsize <= LOAD_BYTES and row_length % v == 0)


def indices_fit(index_bits: int, k: int) -> Constraint:
    """Stored column indices have bits enough."""
    return Constraint(
        index_bits == 32 or k <= SHORT_INDICES, f"index_bits = 16 needs k ({k}) of at most {SHORT_INDICES}"
    )
