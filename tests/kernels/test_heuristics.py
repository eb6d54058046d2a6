"""Heuristics of all families, over shapes, densities and devices: what a rule proposes, the family's constraints allow.

Features are drawn, and no matrix is made of them, so that the shapes are as large as users' are.
"""

from __future__ import annotations

import logging
import math
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from tuning_samples import H100

from sparsegen.backends.emulator import device as emulator
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels import families, family
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.spmm.lane_stream_spmm import LaneStreamSpmm
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, Problem, SpmmProblem
from sparsegen.testing.kinds import CONVOLVED, batches, kinds, of_8bit_factors
from sparsegen.testing.variants import random_config
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Workload

DRAWN = 60  # problems of each family
KB = 1024
EXTENTS = (
    1,
    2,
    3,
    7,
    16,
    17,
    31,
    64,
    100,
    128,
    255,
    500,
    1000,
    2048,
    4096,
    16384,
    60_000,
    131_072,
    1_000_000,
)
DENSE_SIZES = (1, 3, 8, 16, 17, 32, 64, 100, 256, 1000, 4096, 100_000)
DENSITIES = (0, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.34, 0.36, 0.5, 0.8, 1)
NOTHING = MemoryLayer([], [])  # was measured
LARGEST_IMAGE = 1_000_000  # pixels
TRIES = 100  # configs that must be refused where the heuristic one is


def _gpu(capability: tuple[int, int], multiprocessors: int, block_kb: int, multiprocessor_kb: int) -> Device:
    return replace(
        H100,
        compute_capability=capability,
        multiprocessors=multiprocessors,
        shared_memory_per_block=block_kb * KB,
        shared_memory_per_multiprocessor=multiprocessor_kb * KB,
    )


DEVICES = {
    "H100": H100,
    "an H100's smallest part": replace(H100, multiprocessors=1),
    "an H100's seventh": replace(H100, multiprocessors=18),
    "emulator": emulator(),
    "A100": _gpu((8, 0), 108, 163, 164),
    "T4": _gpu((7, 5), 40, 64, 64),
    "RTX 4090": _gpu((8, 9), 128, 99, 100),
    "B200": _gpu((10, 0), 148, 227, 228),
    "RTX 5090": _gpu((12, 0), 170, 99, 100),
}


def _features(rng: random.Random) -> Features:
    m, k, density = rng.choice(EXTENTS), rng.choice(EXTENTS), rng.choice(DENSITIES)
    nnz = min(m * k, int(m * k * density), 2**31 - 1)
    if nnz == 0:
        return Features(m, k, 0, 0.0, 0.0, 0, 0.0)
    longest = min(k, int(nnz / m * rng.choice((1, 1.5, 4, 100))) + 1)
    return Features(m, k, nnz, nnz / m, rng.choice((0, 0.1, 0.5, 2, 10)), longest, rng.choice((0.1, 0.5, 1)))


def _drawn(of: AnyFamily, rng: random.Random) -> list[tuple[Problem, Features]]:
    some = [*kinds(of, rng), *batches(of, rng), *of_8bit_factors(of, rng)]
    found: list[tuple[Problem, Features]] = []
    for _ in range(DRAWN):
        kind, features = rng.choice(some), _features(rng)
        if of.problem_type in CONVOLVED and features.m * features.k > LARGEST_IMAGE:
            continue
        is_depthwise = "groups" in dict(kind.parameters)
        if is_depthwise and rng.random() < 0.5:
            kind = kind.with_sizes(rng.choice(DENSE_SIZES))
        sizes = kind.sizes
        if not is_depthwise and rng.random() < 0.5:
            sizes = tuple((name, rng.choice(DENSE_SIZES)) for name, _ in sizes)
        options: dict[str, Any] = dict((*sizes, *kind.traits, *kind.parameters, ("batch", kind.batch)))
        problem = of.problem_type.of((features.m, features.k), **options)
        if of.computes(problem):
            has_pattern = of.problem_type.has_pattern
            found.append((problem, features if has_pattern else problem.features(problem.without_pattern)))
    return found


def _some_valid(
    of: AnyFamily, problem: Problem, config: Any, device: Device, rng: random.Random
) -> Any | None:
    """A valid config: one choice from this one, or one of many that are drawn; None if all are refused."""
    near = [replace(config, **{t.name: choice}) for t in of.config_type.tunables() for choice in t.choices]
    drawn = [random_config(of, rng) for _ in range(TRIES)]
    return next((c for c in (*near, *drawn) if of.is_valid(problem, c, device)), None)


@pytest.mark.parametrize("name", sorted(families()))
def test_what_heuristics_propose_is_valid(name: str) -> None:
    """Or else no config of the family is, on this device."""
    of, rng = family(name), random.Random(name)
    problems = _drawn(of, rng)
    valid, refused = 0, set()
    for problem, features in problems:
        for title, device in DEVICES.items():
            config = of.proposals(problem, features, device)[0]
            broken = of.broken_constraints(problem, config, device)
            kind = title, re.sub(r"\d", "", broken[0]) if broken else ""
            if broken and kind in refused:
                continue  # one of a kind is looked at closely
            if broken:
                refused.add(kind)
                other = _some_valid(of, problem, config, device, rng)
                assert other is None, f"{problem}, {features} on {title}: {broken}; valid is {other}"
                continue
            valid += 1
            assert of.analytic_us(problem, features, config, device) > 0
    assert valid > len(problems), "most are valid on several devices"


@pytest.mark.parametrize(
    ("m", "k", "n"), [(128, 16384, 8), (1, 131_072, 1), (100, 60_000, 64), (31, 1_000_000, 1)]
)
def test_few_rows_and_many_columns_have_a_variant(m: int, k: int, n: int) -> None:
    nnz = m * k // 100
    features = Features(m, k, nnz, nnz / m, 0.1, nnz // m + 10, 0.02)
    for dtype in DType:
        problem = SpmmProblem(m, k, n, dtype=dtype, layout=Layout.COLUMN)
        for device in DEVICES.values():
            choice = choose(Workload(problem, f"{m}", features), device, NOTHING)
            assert choice.config.is_known


def test_a_family_whose_rule_fails_is_left_out_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = SpmmProblem(128, 512, 8, dtype=DType.FLOAT16, layout=Layout.COLUMN)
    features = Features(128, 512, 6553, 51.2, 0.1, 60, 0.1)
    workload = Workload(problem, "fails", features)
    whole = choose(workload, H100, MemoryLayer([], []))

    def fails(*_: object) -> Any:
        raise ConfigError("warps_k = 12 is none of 1, 2, 4, 8")

    monkeypatch.setattr(LaneStreamSpmm, "heuristic", fails)
    of = family("lane_stream_spmm")
    assert of.predicted_us(problem, features, H100) == math.inf
    with caplog.at_level(logging.WARNING):
        assert of.proposals(problem, features, H100) == ()
    assert "lane_stream_spmm is left out" in caplog.text and "warps_k = 12" in caplog.text
    choice = choose(workload, H100, MemoryLayer([], []))
    assert choice.how is whole.how is How.DEFAULT
    assert choice.config.family_name != "lane_stream_spmm"
    for each in families().values():
        if each.problem_type is SpmmProblem:
            monkeypatch.setattr(type(each), "heuristic", fails)
    with pytest.raises(NoVariantError, match=r"its heuristic fails: warps_k = 12"):
        choose(workload, H100, MemoryLayer([], []))
