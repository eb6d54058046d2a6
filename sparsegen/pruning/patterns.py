"""Patterns of pruned weights: unstructured, uniform, N of M neighbours, blocks, and blocks as uniform columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.chosen_columns import CHOSEN
from sparsegen.pruning.groups import Groups, largest_per_row
from sparsegen.pruning.score import Score
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

_CHUNK = 1 << 22  # elements of rows that are sorted together, to bound memory


@dataclass(frozen=True, slots=True)
class Unstructured:
    """Every weight is a group of its own, scored by its magnitude (Han et al., NeurIPS 2015, section 3)."""

    elementwise = True
    rule = "to whole weights"

    def describe(self) -> str:
        return "unstructured"

    def groups(self, magnitudes: Array) -> Groups:
        return Groups(magnitudes.reshape(-1), 1)

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        return kept.reshape(magnitudes.shape)


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


@dataclass(frozen=True, slots=True)
class NM:
    """N of every M weights, counted from the start of the row; ``n`` from 1 to ``m`` - 1.

    Attributes:
        rows: rows of a block, whose weights lie in four of every M columns, those with the most energy (V:N:M); 1
            without blocks.
    """

    n: int
    m: int
    rows: int = 1

    rule = "given by N and M; the rest of a row that M does not divide keeps up to N"

    @property
    def sparsity(self) -> float:
        return (self.m - self.n) / self.m  # rounded once: 7:10 prunes the very number 0.3

    def describe(self) -> str:
        return f"nm {f'{self.rows}:' * (self.rows > 1)}{self.n}:{self.m}"

    def mask(self, magnitudes: Array) -> Array:
        rows, k = magnitudes.shape
        if self.rows > 1:
            magnitudes = np.where(self._columns(magnitudes), magnitudes, -1)
        whole = k - k % self.m
        mask = np.empty((rows, k), np.bool_)
        groups = magnitudes[:, :whole].reshape(rows * (whole // self.m), self.m)
        mask[:, :whole] = largest_per_row(groups, self.n).reshape(rows, whole)
        mask[:, whole:] = largest_per_row(magnitudes[:, whole:], self.n)
        return mask

    def _columns(self, magnitudes: Array) -> Array:
        """Booleans like the magnitudes: true in the columns that a block of rows has weights in."""
        rows, k = magnitudes.shape
        energy = np.zeros((ceil_div(rows, self.rows), ceil_div(k, self.m) * self.m))
        for block in range(energy.shape[0]):
            part = magnitudes[block * self.rows : (block + 1) * self.rows]
            energy[block, :k] = np.square(part, dtype=np.float64).sum(axis=0)
        chosen = largest_per_row(energy.reshape(-1, self.m), CHOSEN).reshape(energy.shape)
        return np.repeat(chosen[:, :k], self.rows, axis=0)[:rows]


@dataclass(frozen=True, slots=True)
class Grid:
    """A layer cut into blocks of height × width from its upper left corner on; the last ones may be smaller."""

    height: int
    width: int
    score: Score

    def scores(self, importance: Array) -> Array:
        """The score of every block: float64, rows of blocks × columns of blocks."""
        m, k = importance.shape
        partial = np.zeros((ceil_div(m, self.height), ceil_div(k, self.width)), np.float64)
        left = np.arange(0, k, self.width)
        if k:
            for row in range(partial.shape[0]):
                band = importance[row * self.height : (row + 1) * self.height]
                partial[row] = self.score.runs(self.score.columns(band), left)
        return self.score.ended(partial)

    def areas(self, shape: tuple[int, int]) -> Array:
        """Weights in every block: int64, rows of blocks × columns of blocks."""
        m, k = shape
        heights = np.minimum(self.height, m - np.arange(0, m, self.height))
        widths = np.minimum(self.width, k - np.arange(0, k, self.width))
        return np.outer(heights, widths).astype(np.int64)

    def spread(self, blocks: Array, shape: tuple[int, int]) -> Array:
        """A value for every weight from one for every block."""
        m, k = shape
        return blocks[np.ix_(np.arange(m) // self.height, np.arange(k) // self.width)]


@dataclass(frozen=True, slots=True)
class Block:
    """Blocks of height × width are the groups, scored by default by their l2 norms."""

    height: int
    width: int
    score: Score = Score.L2

    elementwise = False
    rule = "to whole blocks; those at the right and lower edges may be smaller"

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width, self.score)

    def describe(self) -> str:
        return f"block {self.height}x{self.width}{_by(self.score)}"

    def groups(self, magnitudes: Array) -> Groups:
        shape = (magnitudes.shape[0], magnitudes.shape[1])
        return Groups(self.grid.scores(magnitudes).reshape(-1), self.grid.areas(shape).reshape(-1))

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        shape = (magnitudes.shape[0], magnitudes.shape[1])
        return self.grid.spread(kept.reshape(self.grid.areas(shape).shape), shape)


@dataclass(frozen=True, slots=True)
class BlockedUniform:
    """Keeps as many blocks in every row of blocks: uniform pruning by the blocks' scores, by default their l2 norms.

    Muralidharan, MLSys 2023. The scores of every row of blocks are sorted; column j of what results is one group,
    scored like a block.
    """

    height: int
    width: int
    score: Score = Score.L2

    elementwise = False
    rule = "to whole columns of the sorted block scores: a block of every row of blocks"

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width, self.score)

    def describe(self) -> str:
        return f"blocked-uniform {self.height}x{self.width}{_by(self.score)}"

    def groups(self, magnitudes: Array) -> Groups:
        scores = self.grid.scores(magnitudes)
        # Stable, so that of equals the leftmost comes first, as in `largest_per_row`.
        order = np.argsort(-scores, axis=1, kind="stable")
        ordered = np.take_along_axis(scores, order, axis=1)
        areas = np.take_along_axis(self.grid.areas((magnitudes.shape[0], magnitudes.shape[1])), order, axis=1)
        return Groups(self.score.ended(self.score.columns(ordered)), areas.sum(axis=0))

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        chosen = largest_per_row(self.grid.scores(magnitudes), int(np.count_nonzero(kept)))
        return self.grid.spread(chosen, (magnitudes.shape[0], magnitudes.shape[1]))


def _by(score: Score) -> str:
    return "" if score is Score.L2 else f" by {score}"
