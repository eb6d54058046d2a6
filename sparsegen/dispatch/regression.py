"""Slowdowns of configs on workloads, by Gaussian-process regression (Rasmussen and Williams, 2006, section 2.2).

A point is a workload's place and a config. How alike two points are is the product of how near their workloads are and
of a sum: a share that all configs have in common, one for those of the same family, one for each family's heuristic
config, which is another config on another workload but was made by the same rule, and one for configs with equal or
similar tunables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Array
from sparsegen.kernels.config import Config
from sparsegen.kernels.similarity import differences

REACH = 2.0  # octaves between workloads at which their likeness has fallen to exp(-1/2)
COMMON, SAME_FAMILY, SAME_HEURISTIC, SAME_CONFIG = 0.3, 0.3, 0.5, 1.0  # shares of the likeness of configs
PER_TUNABLE = 0.35  # likeness of two configs for each tunable in which they differ (`differences`)
NOISE, NOISE_OF_SLOW = 0.02, 0.1  # variance of a log, and of what is far from the best: little depends on it
UNKNOWN = 0.5  # log of the slowdown that is expected where nothing is alike


@dataclass(frozen=True, slots=True)
class Point:
    """A config on a workload.

    Attributes:
        position: the workload's place, float64 in octaves.
        config: of a known family.
        is_heuristic: whether it is the family's heuristic config there.
    """

    position: Array
    config: Config
    is_heuristic: bool


def expected(known: Sequence[Point], logs: Array, wanted: Sequence[Point]) -> Array:
    """The logs of the slowdowns to be expected.

    Args:
        logs: of each known point the log of its slowdown.
    """
    covariance = _likeness(known, known)
    covariance[np.diag_indices_from(covariance)] += NOISE + NOISE_OF_SLOW * logs**2
    weights = _solution(covariance, logs - UNKNOWN)
    mean: Array = UNKNOWN + (_likeness(wanted, known) * weights).sum(axis=1)
    return mean


def _solution(matrix: Array, right: Array) -> Array:
    """x with matrix · x = right, for a positive definite matrix of some hundred rows, which is overwritten.

    By elimination, in one thread: BLAS starts one on each core the first time, and has them wait for each other, which
    takes longer than all of this.
    """
    found = right.copy()
    for i in range(len(found) - 1):
        factors = matrix[i + 1 :, i] / matrix[i, i]
        matrix[i + 1 :, i + 1 :] -= factors[:, None] * matrix[i, i + 1 :]
        found[i + 1 :] -= factors * found[i]
    for i in range(len(found) - 1, -1, -1):
        found[i] = (found[i] - (matrix[i, i + 1 :] * found[i + 1 :]).sum()) / matrix[i, i]
    return found


def _likeness(some: Sequence[Point], others: Sequence[Point]) -> Array:
    here, there = _places(some), _places(others)
    squares = ((here[:, None, :] - there[None, :, :]) ** 2).sum(axis=2)
    heuristics = [np.array([p.is_heuristic for p in points]) for points in (some, others)]
    differing = differences([p.config for p in some], [p.config for p in others])
    is_same_family = np.isfinite(differing)
    alike = COMMON + SAME_FAMILY * is_same_family + SAME_CONFIG * PER_TUNABLE**differing
    alike += SAME_HEURISTIC * (is_same_family & heuristics[0][:, None] & heuristics[1][None, :])
    near: Array = np.exp(-squares / (2 * REACH**2)) * alike
    return near


def _places(points: Sequence[Point]) -> Array:
    return np.array([p.position for p in points])


def log_slowdowns(times: Sequence[float]) -> Array:
    """Logs of times over the least of them."""
    found: Array = np.log(np.array(times)) - math.log(min(times))
    return found
