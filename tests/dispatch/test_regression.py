"""Expectations of a Gaussian process for configs on workloads that were not measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from sparsegen.dispatch.regression import Point, Regression
from sparsegen.kernels.config import Config, tunable


@dataclass(frozen=True)
class AConfig(Config):
    size: int = tunable(8, (1, 4, 8, 32, 64, 128), "")
    word: str = tunable("x", ("x", "y"), "")


@dataclass(frozen=True)
class BConfig(AConfig):
    """Config of another family."""


def point(place: float, family: str, *values: int | str) -> Point:
    config = (AConfig if family == "a" else BConfig)(*values)  # type: ignore[arg-type]
    return Point(np.array([place, 0.0]), config)


def test_what_is_known_comes_back_nearly() -> None:
    known = [point(0, "a", 8), point(0, "a", 128), point(9, "a", 8)]
    logs = np.array([0.0, 0.4, 0.2])
    mean, doubt = Regression(known, logs).expected(known)
    np.testing.assert_allclose(mean, logs, atol=0.05)
    assert (doubt < 0.15).all()


def test_far_from_everything_the_model_counts_as_much_as_it_is_off_everywhere() -> None:
    """A device that takes a thousand times as long for all that was measured will for the rest, too."""
    logs = np.full(3, np.log(1000.0))
    [mean], [doubt] = Regression([point(x, "a", 8) for x in (0, 20, 40)], logs).expected([point(90, "b", 8)])
    assert mean == pytest.approx(np.log(1000.0), rel=0.1)
    assert doubt == pytest.approx(math.sqrt(0.08 + 0.15))


def test_a_trend_along_the_workloads_goes_on() -> None:
    """The model is right about family a on small workloads and about b on large ones."""
    known = [point(x, f, 1) for x in (0.0, 1.0, 3.0, 4.0) for f in ("a", "b")]
    logs = np.array([0.0, 0.6, 0.0, 0.3, 0.3, 0.0, 0.6, 0.0])
    process = Regression(known, logs)
    small, large = (process.expected([point(x, "a", 1), point(x, "b", 1)])[0] for x in (0.5, 3.5))
    assert small[0] < small[1] - 0.1 and large[1] < large[0] - 0.1


def test_near_numbers_are_more_alike_than_far_ones_and_other_words() -> None:
    known = [point(0, "a", 64, "x"), point(0, "b", 64, "x")]
    wanted = [point(0, "a", 32, "x"), point(0, "a", 4, "x"), point(0, "a", 64, "y"), point(0, "b", 4, "y")]
    (near, far, other, stranger), doubt = Regression(known, np.array([-0.4, 0.4])).expected(wanted)
    assert near < other < far < 0 < stranger
    assert list(np.argsort(doubt)) == [0, 2, 1, 3]


@pytest.mark.parametrize(
    ("asked", "likeness"),
    [
        (("a", 64, "x"), 0.08 + 0.15),
        (("a", 64, "y"), 0.08 + 0.15 * 0.35),
        (("a", 4, "x"), 0.08 + 0.15 * 0.35 ** (math.log2(65 / 5) / 2)),
        (("b", 64, "x"), 0.0),
    ],
)
@pytest.mark.parametrize(("octaves", "near"), [(0.0, 1.0), (1.5, math.exp(-0.5)), (3.0, math.exp(-2.0))])
@pytest.mark.parametrize("log", [0.1, -2.0])
def test_what_one_point_says_of_another(
    asked: tuple[str, int, str], likeness: float, octaves: float, near: float, log: float
) -> None:
    """Checks the formula for one known point: the likeness and the common part, over its variance and noise."""
    variance = 1.0 + 0.08 + 0.15 + 0.005
    [mean], [doubt] = Regression([point(0, "a", 64, "x")], np.array([log])).expected([point(octaves, *asked)])
    assert mean == pytest.approx((1.0 + near * likeness) / variance * log)
    assert doubt**2 == pytest.approx(0.23 - (near * likeness) ** 2 / 0.235)
