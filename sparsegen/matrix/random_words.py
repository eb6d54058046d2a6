"""Draws from the 64-bit words of PCG64, which NumPy promises to keep (NEP 19): the same everywhere, for good."""

from __future__ import annotations

import numpy as np

from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array


class Words:
    """A stream of draws that a seed names for good; NumPy's distributions may change theirs with a release."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def _raw(self, count: int) -> Array:
        return np.asarray(self._bits.random_raw(count), dtype="<u8")

    def halves(self, rows: int, columns: int) -> Array:
        """uint32, rows × columns; every row starts with a new word, so that chunks of rows do not matter."""
        per_row = ceil_div(columns, 2)
        return self._raw(rows * per_row).view("<u4").reshape(rows, 2 * per_row)[:, :columns]

    def fractions(self, count: int) -> Array:
        """float64 in [0, 1), 53 bits each."""
        return (self._raw(count) >> np.uint64(11)) * 2.0**-53

    def below(self, bound: int, count: int) -> Array:
        """int64 in [0, bound), bound up to 2³¹; a word's upper half scaled, so biased by at most bound / 2³²."""
        return (((self._raw(count) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)

    def ranked(self, rows: int, columns: int) -> Array:
        """uint64, rows × columns: random, and no two equal in a row, for the column stands in the lowest bits."""
        bits = np.uint64(max(columns - 1, 0).bit_length())
        keys = self._raw(rows * columns).reshape(rows, columns) >> bits << bits
        return keys | np.arange(columns, dtype=np.uint64)

    def permutation(self, count: int) -> Array:
        return np.argsort(self.ranked(1, count)[0], kind="stable")
