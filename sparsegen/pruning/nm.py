"""N:M pruning: of every M neighbouring weights of a row, the N largest stay (Mishra et al., 2021: 2:4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.pruning.groups import largest_per_row
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True)
class NM:
    """N of every M weights, counted from the start of the row; ``n`` from 1 to ``m`` - 1."""

    n: int
    m: int

    rule = "given by N and M; the rest of a row that M does not divide keeps up to N"

    @property
    def sparsity(self) -> float:
        return (self.m - self.n) / self.m  # rounded once: 7:10 prunes the very number 0.3

    def describe(self) -> str:
        return f"nm {self.n}:{self.m}"

    def mask(self, magnitudes: Array) -> Array:
        rows, k = magnitudes.shape
        whole = k - k % self.m
        mask = np.empty((rows, k), np.bool_)
        groups = magnitudes[:, :whole].reshape(rows * (whole // self.m), self.m)
        mask[:, :whole] = largest_per_row(groups, self.n).reshape(rows, whole)
        mask[:, whole:] = largest_per_row(magnitudes[:, whole:], self.n)
        return mask
