"""Rows of bits as 64-bit words: bit c of a row is bit c % 64 of its word c / 64; bits past a row's end are zero."""

from __future__ import annotations

import numpy as np

from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

WORD_BITS = 64
WORD = np.dtype("<u8")


def words_for(bits: int) -> int:
    """Number of words in a row of ``bits`` bits."""
    return ceil_div(bits, WORD_BITS)


def packed_rows(rows: Array) -> Array:
    """uint64, rows × words, of bools, rows × columns."""
    count, columns = rows.shape
    padded = np.zeros((count, words_for(columns) * WORD_BITS), dtype=np.bool_)
    padded[:, :columns] = rows
    packed: Array = np.packbits(padded, axis=1, bitorder="little").view(WORD)
    return packed


def unpacked_rows(words: Array, columns: int) -> Array:
    """bool, rows × columns, of uint64, rows × words."""
    as_bytes = np.ascontiguousarray(words, dtype=WORD).view(np.uint8)
    unpacked: Array = np.unpackbits(as_bytes, axis=1, count=columns, bitorder="little").view(np.bool_)
    return unpacked
