"""Error of the cost model, by Gaussian-process regression (Rasmussen and Williams, 2006, section 2.2).

A point is a workload's place and a config, and its value the log of a measured time over the modelled one. How alike
two points are is a share that all have in common, as of a device that is faster than its description, and the product
of how near their workloads are and of two shares: one for configs of the same family, and one for equal or similar
tunables. Of a family that was measured nowhere near, the model's word counts, with what all have in common.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sparsegen.kernels.config import Config
from sparsegen.kernels.similarity import Points
from sparsegen.system.median import median
from sparsegen.system.numpy_types import Array

REACH = 1.5  # octaves between workloads at which their likeness has fallen to exp(-1/2)
# Shares of the likeness, as variances of logs, and that of the noise, by searches of 72 workloads on an H100, of which
# pattern, shape or suite were left out: what is chosen takes 1.035, 1.063 and 1.073 times the best one's time, and
# with twice or half of any share 1 % more at most.
COMMON, SAME_FAMILY, SAME_CONFIG, NOISE = 1.0, 0.08, 0.15, 0.005
PER_TUNABLE = 0.35  # likeness of two configs for each tunable in which they differ (`differences`)
# Log of the error, from the median one, beyond which a model does not know a pattern there; here it may.
FARTHEST_OFF = 0.7


class Point(NamedTuple):
    """A config on a workload.

    Attributes:
        position: the workload's place, float64 in octaves.
        config: config of a known family.
    """

    position: Array
    config: Config


class Regression:
    """Gaussian process fitted to known points; predicts others."""

    def __init__(self, known: Sequence[Point], logs: Array) -> None:
        """The process, given what is known.

        Beside the common part, configs of different families are not alike: each family's points are solved alone,
        and the common part, the same number everywhere, is put in after (Sherman and Morrison, 1950).

        Args:
            logs: for each known point the log of its time over the modelled one.
        """
        self._known = _Encoded.of(known)
        usual = median(logs.tolist())
        values = np.clip(logs, usual - FARTHEST_OFF, usual + FARTHEST_OFF)
        solved = np.stack([values, np.ones(values.size)], axis=1)
        for mine, _, alike in self._known.likeness(self._known):
            alike[np.diag_indices_from(alike)] += NOISE
            solved[mine] = _solution(alike, solved[mine])
        alone, ones = solved.T
        self._weights = alone - ones * (COMMON * alone.sum() / (1 + COMMON * ones.sum()))

    def expected(self, wanted: Sequence[Point]) -> tuple[Array, Array]:
        """Predicts the values of points, and their doubt: float64 [wanted], logs.

        Doubt is the standard deviation that remains given the most informative known point alone.
        """
        mean = np.full(len(wanted), COMMON * self._weights.sum())
        nearest = np.zeros(len(wanted))
        for mine, theirs, alike in _Encoded.of(wanted).likeness(self._known):
            mean[mine] += (alike * self._weights[theirs]).sum(axis=1)
            nearest[mine] = alike.max(axis=1)
        most = SAME_FAMILY + SAME_CONFIG
        doubt: Array = np.sqrt(np.maximum(0.0, most - nearest**2 / (most + NOISE)))
        return mean, doubt


def _solution(matrix: Array, right: Array) -> Array:
    """X with matrix · X = right, for a positive definite matrix of some ten rows, which is overwritten.

    By elimination, in one thread: BLAS starts one on each core the first time, and has them wait for each other, which
    takes longer than all of this.
    """
    found = right.copy()
    for i in range(len(found) - 1):
        factors = matrix[i + 1 :, i, None] / matrix[i, i]
        matrix[i + 1 :, i + 1 :] -= factors * matrix[i, i + 1 :]
        found[i + 1 :] -= factors * found[i]
    for i in range(len(found) - 1, -1, -1):
        found[i] = (found[i] - (matrix[i, i + 1 :, None] * found[i + 1 :]).sum(axis=0)) / matrix[i, i]
    return found


class _Encoded(NamedTuple):
    """Points as arrays. There are far fewer workloads than points, each with many configs.

    Attributes:
        places: float64 [workloads, dimensions], and ``workload``, int64 [points], which of them each point has.
    """

    places: Array
    workload: Array
    configs: Points

    @classmethod
    def of(cls, points: Sequence[Point]) -> _Encoded:
        positions = {id(point.position): point.position for point in points}
        number = {place: i for i, place in enumerate(positions)}
        workload = np.array([number[id(point.position)] for point in points])
        return cls(np.array(list(positions.values())), workload, Points.of([p.config for p in points]))

    def likeness(self, others: _Encoded) -> Iterator[tuple[Array, Array, Array]]:
        """Covariance of points without the common part, family by family: the places of a family's points in these and
        in others, and float64 [points, other points].
        """
        squares = ((self.places[:, None, :] - others.places[None, :, :]) ** 2).sum(axis=2)
        near = np.exp(-squares / (2 * REACH**2))
        for here, there, differing in self.configs.alike(others.configs):
            alike = SAME_FAMILY + SAME_CONFIG * PER_TUNABLE**differing
            yield here, there, near[np.ix_(self.workload[here], others.workload[there])] * alike
