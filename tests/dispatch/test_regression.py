"""What a Gaussian process expects of configs on workloads that were not measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from sparsegen.dispatch.regression import UNKNOWN, Point, expected, log_slowdowns
from sparsegen.kernels.config import Config, tunable


@dataclass(frozen=True)
class AConfig(Config):
    size: int = tunable(8, (1, 4, 8, 32, 64, 128), "")
    word: str = tunable("x", ("x", "y"), "")


@dataclass(frozen=True)
class BConfig(AConfig):
    """Of another family."""


def point(place: float, family: str, *values: int | str, is_heuristic: bool = False) -> Point:
    config = (AConfig if family == "a" else BConfig)(*values)  # type: ignore[arg-type]
    return Point(np.array([place, 0.0]), config, is_heuristic)


def test_what_is_known_comes_back_nearly() -> None:
    known = [point(0, "a", 8), point(0, "a", 128), point(9, "a", 8)]
    logs = np.array([0.0, 0.4, 0.2])
    np.testing.assert_allclose(expected(known, logs, known), logs, atol=0.05)


def test_far_from_everything_nothing_is_known() -> None:
    [found] = expected([point(0, "a", 8)], np.array([0.0]), [point(50, "a", 8)])
    assert found == np.float64(UNKNOWN)


def test_a_trend_along_the_workloads_goes_on() -> None:
    """Family a is best on small workloads and b on large ones; a vote of all four would be a draw."""
    known = [point(x, f, 1) for x in (0.0, 1.0, 3.0, 4.0) for f in ("a", "b")]
    logs = np.array([0.0, 0.6, 0.0, 0.3, 0.3, 0.0, 0.6, 0.0])
    small, large = (expected(known, logs, [point(x, "a", 1), point(x, "b", 1)]) for x in (0.5, 3.5))
    assert small[0] < small[1] - 0.1 and large[1] < large[0] - 0.1


def test_near_numbers_are_more_alike_than_far_ones_and_other_words() -> None:
    known = [point(0, "a", 64, "x")]
    near, far, other = expected(
        known, np.array([0.0]), [point(0, "a", 32, "x"), point(0, "a", 4, "x"), point(0, "a", 64, "y")]
    )
    assert 0 < near < other < UNKNOWN and near < far < UNKNOWN


def test_a_heuristic_tells_of_heuristics() -> None:
    known = [point(0, "a", 64, is_heuristic=True)]
    logs = np.array([0.0])
    heuristic, other = expected(known, logs, [point(0, "a", 4, is_heuristic=True), point(0, "a", 4)])
    assert heuristic < other


@pytest.mark.parametrize(
    ("asked", "likeness"),
    [
        (("a", 64, "x"), 0.3 + 0.3 + 1.0),
        (("a", 64, "y"), 0.3 + 0.3 + 0.35),
        (("a", 4, "x"), 0.3 + 0.3 + 0.35 ** (math.log2(65 / 5) / 2)),
        (("b", 64, "x"), 0.3),
    ],
)
@pytest.mark.parametrize(("octaves", "near"), [(0.0, 1.0), (2.0, math.exp(-0.5)), (4.0, math.exp(-2.0))])
@pytest.mark.parametrize("log", [0.1, 2.0])
@pytest.mark.parametrize("heuristics", [(False, False), (True, False), (True, True)])
def test_what_one_point_says_of_another(
    asked: tuple[str, int, str],
    likeness: float,
    octaves: float,
    near: float,
    log: float,
    heuristics: tuple[bool, bool],
) -> None:
    """By the formula for one known point: its likeness over its variance and noise, of what it differs from 0.5."""
    same_rule = 0.5 * all(heuristics) * (asked[0] == "a")
    variance = 0.3 + 0.3 + 1.0 + 0.5 * heuristics[0] + 0.02 + 0.1 * log**2
    known = [point(0, "a", 64, "x", is_heuristic=heuristics[0])]
    [found] = expected(known, np.array([log]), [point(octaves, *asked, is_heuristic=heuristics[1])])
    assert found == pytest.approx(0.5 + near * (likeness + same_rule) / variance * (log - 0.5))


def test_slowdowns() -> None:
    np.testing.assert_allclose(log_slowdowns([20.0, 10.0]), [math.log(2), 0])
