"""Every problem that an operator's API accepts has a kernel: a valid config by rule, with a finite expected time.

Operators that are not listed in `ANYTHING` say which of their problems no kernel computes (`Family.scope`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from sparsegen.bench.drawn import distributions, drawn_cases
from sparsegen.dispatch.choice import choose
from sparsegen.errors import ConfigError
from sparsegen.matrix.features import Features
from sparsegen.operators import OPERATORS, Problem, fields_of
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Workload

DEVICE = find_target("nvidia-h200").device
NOTHING = MemoryLayer([], [])  # was measured
SEED, ROWS = 77013, 2
LARGEST_PATTERN = 1 << 21  # nonzeros of a matrix that is drawn
TRIES = 25  # problems of each operator
SIZES = (*range(1, 10), 13, 17, 31, 33, 63, 65, 100, 128, 257, 500, 777, 1024, 2047, 5003, 16384)
DENSITIES = (0, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 0.5, 1)
ANYTHING = (
    *("spmm", "quantized_spmm", "sddmm", "sparse_softmax", "sparse_softmax_backward"),
    *("dsd", "dsd_transposed", "sdd", "masked_conv2d", "masked_conv2d_weights"),
    *("submanifold_conv3d", "submanifold_conv3d_weights"),
)
ONE_ELEMENT = ("masked_conv2d_weights", "submanifold_conv3d", "submanifold_conv3d_weights")  # no batches
Draw = Callable[[random.Random], object]


def _pair(*values: int) -> Draw:
    return lambda rng: f"{rng.choice(values)}x{rng.choice(values)}"


PARAMETERS: dict[str, Draw] = {
    "block": _pair(16, 32, 64, 128, 256),
    "density": lambda rng: rng.choice((0.001, 0.02, 0.3, 0.5, 1.0)),
    "filter_size": _pair(1, 2, 3, 4, 5, 6, 7),
    "stride": _pair(1, 2, 3, 4, 5),
    "padding": _pair(0, 1, 2, 3),
    "dilation": _pair(1, 2, 3, 5),
    "mask_block": _pair(1, 3, 5, 8, 16, 20, 64, 128),
    "filter_volume": lambda rng: rng.choice(("1x1x1", "3x3x3", "5x1x3", "7x7x7")),
}


def _problem(of: type[Problem], rng: random.Random) -> Problem | None:
    """A problem with random values of every field; None if they do not go together."""
    given: dict[str, Any] = {}
    for name, field in fields_of(of).items():
        if name == "batch":
            given[name] = 1 if of.operator in ONE_ELEMENT else rng.choice((1, 1, 2, 3))
        elif field.is_size:
            given[name] = rng.choice(SIZES[:10] if name == "images" else SIZES)
        elif name in PARAMETERS:
            given[name] = field.parsed(PARAMETERS[name](rng))
        elif field.is_trait and name != "factor_type":  # 8-bit factors have limits, which their errors tell
            given[name] = rng.choice(list(field.kind))  # type: ignore[type-var]
    if rng.random() < 0.3 and "groups" in fields_of(of):
        count = rng.choice((2, 3, given["channels"]))
        given |= {name: count * rng.choice((1, 2, 5)) for name in ("channels", "filters")}
        given["groups"] = fields_of(of)["groups"].parsed(count)
    try:
        return of(**given)
    except ConfigError:
        return None


def _features(problem: Problem, rng: random.Random) -> Features:
    if not problem.has_pattern:
        return problem.features(problem.without_pattern)
    m, k = problem.matrix_shape
    nnz = min(m * k, int(m * k * rng.choice(DENSITIES)))
    longest = min(k, int(nnz / m * rng.choice((1, 1.5, 4))) + 1)
    return Features(m, k, nnz, nnz / m, rng.choice((0, 0.3, 2)) if nnz else 0.0, longest if nnz else 0, 0.3)


def _require_kernel(problem: Problem, features: Features) -> None:
    choice = choose(Workload(problem, "drawn", features), DEVICE, NOTHING)
    family, config = choice.family, choice.config
    assert family.suits(problem, features, config, DEVICE)
    expected = family.analytic_us(problem, features, config, DEVICE)
    assert math.isfinite(expected) and expected > 0, f"{problem}: {config} {expected}"


@pytest.mark.parametrize("operator", distributions())
def test_drawn_problems_have_a_kernel(operator: str) -> None:
    for case in drawn_cases(operator, SEED, ROWS):
        problem = case.problem
        drawn = distributions()[operator]
        nonzeros: int = getattr(drawn, "nonzeros", lambda *_: 0)(problem, case.pattern)
        if nonzeros <= LARGEST_PATTERN:
            _require_kernel(problem, problem.features(case.pattern.matrix()))


@pytest.mark.parametrize("operator", ANYTHING)
def test_any_problem_has_a_kernel(operator: str) -> None:
    rng, tried = random.Random(operator), 0
    for _ in range(TRIES):
        problem = _problem(OPERATORS[operator], rng)
        if problem is not None:
            _require_kernel(problem, _features(problem, rng))
            tried += 1
    assert tried > TRIES / 3
