"""Devices with fewer multiprocessors than a cluster has blocks: every config still has an expected time."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import islice

import pytest
from tuning_samples import H100

from sparsegen.kernels import families, family
from sparsegen.testing.kinds import allows, kinds
from sparsegen.testing.matrices import matrices
from sparsegen.testing.variants import random_config

SHAPES = ("aligned_shape", "one_element")
KINDS, DRAWN = 6, 40


@pytest.mark.parametrize("multiprocessors", [1, 3])
@pytest.mark.parametrize("name", sorted(families()))
def test_every_config_has_a_time(name: str, multiprocessors: int) -> None:
    each, device = family(name), replace(H100, multiprocessors=multiprocessors)
    rng = random.Random(name)
    times = []
    for kind in islice(kinds(each, rng), KINDS):
        for matrix in map(matrices().__getitem__, SHAPES):
            problem = kind.problem(matrix)
            if not allows(type(problem), matrix) or not each.computes(problem):
                continue
            features = problem.features(matrix)
            drawn = [random_config(each, rng) for _ in range(DRAWN)]
            for config in (each.heuristic(problem, features, device), *drawn):
                if not each.broken_constraints(problem, config, device):
                    times.append(each.analytic_us(problem, features, config, device))
    assert times and all(0 < us < math.inf for us in times)
