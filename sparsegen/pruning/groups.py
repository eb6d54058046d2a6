"""Groups of weights that stay or go together, each with a score, which a pattern makes of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np

from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads

_CHUNK, _PIECE = 1 << 22, 1 << 16  # values whose squares are added up by a thread, and together
_FEW_COLUMNS = 16  # up to which comparing all pairs is faster than np.partition, which is slow on short rows


class Scope(StrEnum):
    """Set of weights over which the sparsity holds."""

    GLOBAL = "global"  # one threshold over all layers: each gets its own sparsity
    LAYER = "layer"  # every layer has the sparsity asked for


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of one layer.

    Attributes:
        scores: float32 or float64, at least 0, one for each group; the highest stay.
        sizes: weights in each group: one number for all, or int64 like the scores.
    """

    scores: Array
    sizes: int | Array

    def sizes_at(self, where: Array) -> Array:
        """int64 sizes of the groups at these indices."""
        if isinstance(self.sizes, int):
            return np.full(where.shape, self.sizes, np.int64)
        return self.sizes[where]


class RankedPattern(Protocol):
    """A pattern whose groups compete by score.

    Attributes:
        elementwise: the groups are single weights, as many as the layer has, so that they are worked out
            anew in each pass over the layers, not kept; their scores have the weights' type.
    """

    @property
    def elementwise(self) -> bool: ...

    @property
    def rule(self) -> str:
        """Rule by which the requested sparsity is rounded to whole groups, in words."""

    def describe(self) -> str:
        """The pattern in a few words."""

    def groups(self, magnitudes: Array) -> Groups:
        """The groups of a layer.

        Args:
            magnitudes: m × k, float32 or float64, at least 0 and finite.
        """

    def mask(self, magnitudes: Array, kept: Array) -> Array:
        """m × k booleans: the weights that stay when the groups in ``kept`` (a boolean for each) do."""


def largest_per_row(scores: Array, count: int) -> Array:
    """Booleans like ``scores`` (rows × columns): the ``count`` largest of every row, of equals the leftmost."""
    columns = scores.shape[1]
    if count >= columns:
        return np.ones(scores.shape, np.bool_)
    if count <= 0:
        return np.zeros(scores.shape, np.bool_)
    if columns <= _FEW_COLUMNS:
        return _ranks_below(scores, count)
    smallest = np.partition(scores, columns - count, axis=1)[:, columns - count, None]
    above = scores > smallest
    tied = scores == smallest
    room = count - np.count_nonzero(above, axis=1)[:, None]
    chosen: Array = above | (tied & (np.cumsum(tied, axis=1, dtype=np.int32) <= room))
    return chosen


def _ranks_below(scores: Array, count: int) -> Array:
    """The same for short rows: a place's rank is the number of places that go before it."""
    columns = np.ascontiguousarray(scores.T)
    mask = np.empty(scores.shape, np.bool_)
    for j, column in enumerate(columns):
        rank = np.zeros(column.shape, np.int8)
        for i, other in enumerate(columns):
            if i != j:
                rank += other >= column if i < j else other > column
        mask[:, j] = rank < count
    return mask


def squares(values: Array) -> Array:
    """float64 squares; those of float32 never overflow."""
    return np.square(values, dtype=np.float64)


def energy(values: Array) -> float:
    """Sum of squares in float64; of two matrices of one shape the one with more zeros never has more."""
    flat = values.reshape(-1)
    return float(sum(in_threads(lambda at: _energy(flat[at : at + _CHUNK]), range(0, flat.size, _CHUNK))))


def _energy(chunk: Array) -> float:
    """Sums cache-sized pieces; within a whole chunk pairwise, as NumPy does."""
    if chunk.size < _CHUNK:
        return float(squares(chunk).sum())
    sums = [float(squares(piece).sum()) for piece in chunk.reshape(-1, _PIECE)]
    while len(sums) > 1:
        sums = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]
