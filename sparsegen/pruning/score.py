"""Scores of groups of weights: the importance of a weight, and the sum or maximum of a group's."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.pruning.groups import squares
from sparsegen.pruning.weights import LARGEST
from sparsegen.system.numpy_types import Array


class Score(StrEnum):
    """The score of a group; of a single weight all but `TAYLOR` are its magnitude.

    Muralidharan, MLSys 2023, section 2.2, names the l2 norm, the maximum and the sum for columns of sorted rows.
    """

    L2 = "l2"  # the l2 norm of the magnitudes
    SUM = "sum"  # their sum, the l1 norm
    MAX = "max"  # the largest of them
    TAYLOR = "taylor"  # the l2 norm of weight times gradient (Molchanov et al., CVPR 2019, equation 8)

    @property
    def needs_gradients(self) -> bool:
        return self is Score.TAYLOR

    @property
    def _of_weights(self) -> Callable[[Array], Array]:
        return squares if self in (Score.L2, Score.TAYLOR) else as_float64

    @property
    def _joined(self) -> np.ufunc:
        return np.maximum if self is Score.MAX else np.add

    def columns(self, importance: Array) -> Array:
        """Partial scores of the columns of rows × columns, float64, for `joined` and `ended`."""
        found: Array = self._joined.reduce(self._of_weights(importance), axis=0)
        return found

    def joined(self, one: Array, other: Array) -> Array:
        """Partial scores of two sets of rows together."""
        found: Array = self._joined(one, other)
        return found

    def runs(self, partial: Array, starts: Array) -> Array:
        """Partial scores of neighbouring ones together, each run from one start to the next."""
        found: Array = self._joined.reduceat(partial, starts)
        return found

    def ended(self, partial: Array) -> Array:
        """Scores from partial ones."""
        return np.sqrt(partial) if self in (Score.L2, Score.TAYLOR) else partial


def importance(values: Array, gradients: Array | None, source: str) -> Array:
    """Each weight's: its magnitude, or with gradients of the loss by the weights |weight · gradient|, in float64.

    Args:
        values, gradients: m × k, finite.
        source: what messages call the tensor.

    Raises:
        MatrixError: a product is so large that sums of squares overflow.
    """
    if gradients is None:
        return np.abs(values)
    found: Array = np.abs(values.astype(np.float64) * gradients)
    if found.size and not found.max() <= LARGEST:
        raise MatrixError(f"weight times gradient exceeds {LARGEST:g}: scale the loss down", source=source)
    return found


def as_float64(values: Array) -> Array:
    """The values in float64."""
    return values.astype(np.float64)
