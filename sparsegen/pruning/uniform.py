"""Uniform pruning: as many weights stay in every row of a layer as in every other (Muralidharan, MLSys 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.pruning.groups import Groups, largest_per_row
from sparsegen.pruning.score import Score
from sparsegen.system.numpy_types import Array

_CHUNK = 1 << 22  # elements of rows that are sorted together, to bound memory


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform sparsity, induced as in "Uniform Sparsity in Deep Neural Networks", section 2.2.

    The rows of a layer are sorted by magnitude. Column j of what results holds the j-th largest weight of every
    row: it is one group, whose score is by default its l2 norm. When a layer keeps its first r columns, each of its
    rows keeps its r largest weights, where they were.
    """

    score: Score = Score.L2

    elementwise = False
    rule = "to whole columns of the sorted layers: a weight of every row"

    def describe(self) -> str:
        return "uniform" if self.score is Score.L2 else f"uniform by {self.score}"

    def groups(self, magnitudes: Array) -> Groups:
        m, k = magnitudes.shape
        partial = np.zeros(k, np.float64)
        rows = max(1, _CHUNK // max(1, k))
        for start in range(0, m, rows):
            ordered = np.sort(magnitudes[start : start + rows], axis=1)[:, ::-1]
            partial = self.score.joined(partial, self.score.columns(ordered))
        return Groups(self.score.ended(partial), m)

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        return largest_per_row(magnitudes, int(np.count_nonzero(kept)))
