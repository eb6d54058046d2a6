"""Slowdowns of configs on workloads, by Gaussian-process regression (Rasmussen and Williams, 2006, section 2.2).

A point is a workload's place and a config. How alike two points are is the product of how near their workloads are and
of a sum: a share that all configs have in common, one for those of the same family, one for each family's guess, which
is another config on another workload but was made by the same rule, and one for configs with equal or similar tunables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from sparsegen.kernels.base import Array, Value

REACH = 2.0  # octaves between workloads at which their likeness has fallen to exp(-1/2)
COMMON, SAME_FAMILY, SAME_GUESS, SAME_CONFIG = 0.3, 0.3, 0.5, 1.0  # shares of the likeness of configs
PER_TUNABLE = 0.35  # likeness of two configs for each tunable in which they differ
WHOLLY = 2.0  # octaves by which two numbers differ as much as two words that are not equal
NOISE, NOISE_OF_SLOW = 0.02, 0.1  # variance of a log, and of what is far from the best: little depends on it
UNKNOWN = 0.5  # log of the slowdown that is expected where nothing is alike


@dataclass(frozen=True, slots=True)
class Point:
    """A config on a workload.

    Attributes:
        position: the workload's place, float64 in octaves.
        family, values: the config; one family's values come in one order.
        is_guess: whether it is what the family guesses there.
    """

    position: Array
    family: str
    values: tuple[Value, ...]
    is_guess: bool


def expected(known: Sequence[Point], logs: Array, wanted: Sequence[Point]) -> Array:
    """The logs of the slowdowns to be expected.

    Args:
        logs: of each known point the log of its slowdown.
    """
    covariance = _likeness(known, known)
    covariance[np.diag_indices_from(covariance)] += NOISE + NOISE_OF_SLOW * logs**2
    weights = scipy.linalg.cho_solve(scipy.linalg.cho_factor(covariance, lower=True), logs - UNKNOWN)
    mean: Array = UNKNOWN + _likeness(wanted, known) @ weights
    return mean


def _likeness(some: Sequence[Point], others: Sequence[Point]) -> Array:
    here, there = _places(some), _places(others)
    squares = ((here[:, None, :] - there[None, :, :]) ** 2).sum(axis=2)
    families = [np.array([p.family for p in points]) for points in (some, others)]
    guesses = [np.array([p.is_guess for p in points]) for points in (some, others)]
    alike = np.full(squares.shape, COMMON)
    for family in set(families[0]) & set(families[1]):
        mine, theirs = (np.flatnonzero(names == family) for names in families)
        block = np.ix_(mine, theirs)
        differing = _differing(
            [some[i].values for i in mine.tolist()], [others[i].values for i in theirs.tolist()]
        )
        alike[block] += SAME_FAMILY + SAME_CONFIG * PER_TUNABLE**differing
        alike[block] += SAME_GUESS * (guesses[0][mine][:, None] & guesses[1][theirs][None, :])
    near: Array = np.exp(-squares / (2 * REACH**2)) * alike
    return near


def _places(points: Sequence[Point]) -> Array:
    return np.array([p.position for p in points])


def _differing(some: list[tuple[Value, ...]], others: list[tuple[Value, ...]]) -> Array:
    """In how many tunables each config differs from each other one; numbers count by how far they are apart."""
    total = np.zeros((len(some), len(others)))
    for mine, theirs in zip(zip(*some, strict=True), zip(*others, strict=True), strict=True):
        if all(type(value) is int and value >= 0 for value in (*mine, *theirs)):
            mine_log, theirs_log = (np.log2(np.array(column) + 1.0) for column in (mine, theirs))
            total += np.abs(mine_log[:, None] - theirs_log[None, :]) / WHOLLY
        else:
            numbers = {value: number for number, value in enumerate(dict.fromkeys((*mine, *theirs)))}
            mine_number, theirs_number = (np.array([numbers[v] for v in column]) for column in (mine, theirs))
            total += mine_number[:, None] != theirs_number[None, :]
    return total


def log_slowdowns(times: Sequence[float]) -> Array:
    """Logs of times over the least of them."""
    found: Array = np.log(np.array(times)) - math.log(min(times))
    return found
