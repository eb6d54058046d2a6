"""Block pruning: rectangles of weights stay or go whole, anywhere or as many in every row of blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.csr import Array
from sparsegen.pruning.groups import Groups, largest_per_row, squares
from sparsegen.system.integers import ceil_div


@dataclass(frozen=True, slots=True)
class Grid:
    """A layer cut into blocks of height × width from its upper left corner on; the last ones may be smaller."""

    height: int
    width: int

    def norms(self, magnitudes: Array) -> Array:
        """The l2 norm of every block: float64, rows of blocks × columns of blocks."""
        m, k = magnitudes.shape
        energy = np.zeros((ceil_div(m, self.height), ceil_div(k, self.width)), np.float64)
        left = np.arange(0, k, self.width)
        if k:
            for row in range(energy.shape[0]):
                band = squares(magnitudes[row * self.height : (row + 1) * self.height])
                energy[row] = np.add.reduceat(band.sum(axis=0), left)
        return np.sqrt(energy)

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
    """Blocks of height × width are the groups, their l2 norms the scores."""

    height: int
    width: int

    elementwise = False
    rule = "to whole blocks; those at the right and lower edges may be smaller"

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width)

    def describe(self) -> str:
        return f"block {self.height}x{self.width}"

    def groups(self, magnitudes: Array) -> Groups:
        shape = (magnitudes.shape[0], magnitudes.shape[1])
        return Groups(self.grid.norms(magnitudes).reshape(-1), self.grid.areas(shape).reshape(-1))

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        shape = (magnitudes.shape[0], magnitudes.shape[1])
        return self.grid.spread(kept.reshape(self.grid.areas(shape).shape), shape)


@dataclass(frozen=True, slots=True)
class BlockedUniform:
    """Keeps as many blocks in every row of blocks: uniform pruning by the blocks' l2 norms.

    Muralidharan, MLSys 2023. The norms of every row of blocks are sorted; column j of what results is one group,
    and the l2 norm of that column is its score.
    """

    height: int
    width: int

    elementwise = False
    rule = "to whole columns of the sorted block norms: a block of every row of blocks"

    @property
    def grid(self) -> Grid:
        return Grid(self.height, self.width)

    def describe(self) -> str:
        return f"blocked-uniform {self.height}x{self.width}"

    def groups(self, magnitudes: Array) -> Groups:
        norms = self.grid.norms(magnitudes)
        # Stable, so that of equals the leftmost comes first, as in `largest_per_row`.
        order = np.argsort(-norms, axis=1, kind="stable")
        ordered = np.take_along_axis(norms, order, axis=1)
        areas = np.take_along_axis(self.grid.areas((magnitudes.shape[0], magnitudes.shape[1])), order, axis=1)
        return Groups(np.sqrt(squares(ordered).sum(axis=0)), areas.sum(axis=0))

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        chosen = largest_per_row(self.grid.norms(magnitudes), int(np.count_nonzero(kept)))
        return self.grid.spread(chosen, (magnitudes.shape[0], magnitudes.shape[1]))
