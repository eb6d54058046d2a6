"""Distances of configs, whatever else is in a list with them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from sparsegen.kernels import families_of
from sparsegen.kernels.config import Config
from sparsegen.kernels.similarity import WHOLLY, Points, differences, is_ordered


def configs() -> list[Config]:
    """Some of each family that computes ``spmm``, one family after the other and back."""
    found = []
    for family in families_of("spmm"):
        changed = [t for t in family.config_type.tunables() if len(t.choices) > 1][:3]
        named = product(*([(t.name, choice) for choice in t.choices[:3]] for t in changed))
        found.append([family.config(**dict(values)) for values in named][:8])
    return [config for some in (found, found[::-1]) for of_one in some for config in of_one]


def formula(one: Config, other: Config) -> float:
    if type(one) is not type(other):
        return math.inf
    parts = (
        abs(math.log2(a + 1) - math.log2(b + 1)) / WHOLLY if is_ordered(t) else float(a != b)
        for t in one.tunables()
        for a, b in [(getattr(one, t.name), getattr(other, t.name))]
    )
    return sum(parts)


def test_differences_are_sums_over_a_familys_tunables() -> None:
    some = configs()
    others = some[::3]
    wanted = [[formula(a, b) for b in others] for a in some]
    assert np.isfinite(wanted).any() and np.isinf(wanted).any()
    np.testing.assert_allclose(differences(some, others), wanted, atol=1e-12)


@pytest.mark.parametrize("number", [0, 7, -1])
def test_those_of_one_familys_configs_are_a_row(number: int) -> None:
    some = configs()
    number %= len(some)
    [row] = differences([some[number]], some)
    places, apart = Points.of(some).differences_from(number)
    assert places.tolist() == np.flatnonzero(np.isfinite(row)).tolist()
    np.testing.assert_allclose(apart, row[places], atol=1e-12)
