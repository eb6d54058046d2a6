"""The search finds good configs in few trials, proposes nothing twice, and knows what it was told."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optuna
import pytest
from tuning_fakes import DEVICE, PROBLEM, TOY, Toy, ToyConfig, told

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, tunable
from sparsegen.operators import SpmmProblem
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning.search.search import Search
from sparsegen.tuning.space import Space

JOBS = 16


@dataclass(frozen=True)
class WideConfig(Config):
    """Like a real family: seven and constraints that couple them."""

    rows: int = tunable(4, (1, 2, 4, 8), "")
    tile: int = tunable(64, (32, 64, 128, 256), "")
    vector: int = tunable(2, (1, 2, 4), "")
    strip: int = tunable(32, (16, 32, 64), "")
    swizzle: bool = tunable(True, (False, True), "")
    staging: str = tunable("none", ("none", "shared", "async"), "")
    unroll: int = tunable(1, (1, 2, 4), "")


@dataclass(frozen=True)
class OtherConfig(WideConfig):
    """The same space of another family."""


class Wide(Toy):
    name = "wide"
    config_type: type[Any] = WideConfig

    def constraints(self, problem: SpmmProblem, config: Any, device: Device) -> Iterator[Constraint]:
        yield Constraint(128 <= config.rows * config.tile <= 256, "threads")
        yield Constraint(config.strip * config.vector * config.unroll <= 128, "registers")
        yield Constraint(config.staging != "async" or config.vector > 1, "copies")


class Other(Wide):
    name = "other"
    config_type = OtherConfig


def landscape(seed: int) -> tuple[Space, dict[Config, float]]:
    """A made-up run time for every config of two families: main effects, interactions, a cliff and noise."""
    rng = np.random.default_rng(seed)
    families = [Wide(), Other()]
    space = Space.build(families, PROBLEM, DEVICE)
    times: dict[Config, float] = {}
    for family in families:
        mine = [c for c in space.candidates if type(c) is family.config_type]
        described = WideConfig.tunables()
        levels = np.array([[t.choices.index(getattr(c, t.name)) for t in described] for c in mine])
        log_time = np.full(len(mine), 4.0 + 0.15 * rng.normal())
        for column, t in enumerate(described):
            steps = np.arange(len(t.choices)) - rng.uniform(-0.5, len(t.choices) - 0.5)
            log_time += (abs(rng.normal()) * 0.25 * np.abs(steps) ** 1.3)[levels[:, column]]
        for a, b in itertools.combinations(range(len(described)), 2):
            if rng.random() < 0.4:
                table = 0.12 * rng.normal(size=(len(described[a].choices), len(described[b].choices)))
                log_time += table[levels[:, a], levels[:, b]]
        log_time += 0.5 * (levels[:, 1] + levels[:, 3] >= 4) + 0.04 * rng.normal(size=len(mine))
        times |= dict(zip(mine, np.exp(log_time).tolist(), strict=True))
    return space, times


def regret(
    space: Space,
    times: Mapping[Config, float],
    trials: int,
    sampler: SamplerName = SamplerName.CANDIDATES,
) -> float:
    """Returns how much slower the best of ``trials`` trials is than the best of all, with 16 proposals under way."""
    search = Search(
        space,
        [next(c for c in space.candidates if c.family_name == f.name) for f in space.families],
        sampler=sampler,
    )
    waiting: list[Config] = []
    best = math.inf
    for _ in range(trials):
        while len(waiting) < JOBS and (candidate := search.ask()) is not None:
            waiting.append(candidate)
        measured = waiting.pop(0)
        search.tell(told(measured, times[measured]))
        best = min(best, times[measured])
    return best / min(times.values()) - 1.0


LANDSCAPES = range(4)


def test_it_comes_within_five_percent_in_a_fifth_of_the_trials() -> None:
    regrets = []
    for seed in LANDSCAPES:
        space, times = landscape(seed)
        assert 500 <= len(space.candidates) <= 1500
        regrets.append(regret(space, times, len(space.candidates) // 5))
    assert max(regrets) < 0.05, regrets


def test_it_needs_fewer_trials_than_tpe() -> None:
    ours, theirs = [], []
    for seed in LANDSCAPES:
        space, times = landscape(seed)
        ours.append(regret(space, times, 60))
        theirs.append(regret(space, times, 120, SamplerName.TPE))
    assert np.mean(ours) < np.mean(theirs), (ours, theirs)


@pytest.fixture
def space() -> Space:
    return Space.build([TOY], PROBLEM, DEVICE)


def test_a_space_holds_every_valid_config_once_and_counts_the_others(space: Space) -> None:
    configs = space.candidates
    assert configs[0] == ToyConfig()
    assert set(configs) == set(TOY.space(PROBLEM, DEVICE)) and len(configs) == len(set(configs)) == 12
    assert space.pruned == {"toy: width is at most size": 3}


def test_a_whole_space_holds_what_is_not_searched() -> None:
    whole = Space.build([TOY], PROBLEM, DEVICE, whole=True)
    assert set(whole.candidates) == set(TOY.space(PROBLEM, DEVICE, whole=True))


def test_a_very_large_space_is_explored_from_where_the_search_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparsegen.tuning.space.LARGEST_ENUMERATED", 10)
    wide = Wide()
    start = WideConfig()
    explored = Space.build([wide], PROBLEM, DEVICE, first=[start])
    assert set(explored.candidates) == set(wide.space(PROBLEM, DEVICE))


def test_every_candidate_is_proposed_once_the_first_ones_first(space: Space) -> None:
    first = [space.candidates[7], space.candidates[3]]
    search = Search(space, first)
    proposed = []
    while (candidate := search.ask()) is not None:
        proposed.append(candidate)
        search.tell(told(candidate, None if len(proposed) % 3 == 0 else 10.0 + len(proposed)))
    assert proposed[:2] == first
    assert len(proposed) == len(set(proposed)) == len(space.candidates)
    states = [t.state for t in search.study.trials]
    assert states.count(optuna.trial.TrialState.FAIL) == len(proposed) // 3
    assert search.study.best_trial.params["toy.size"] == first[0].size


def test_a_family_far_behind_is_tried_no_more_than_others_leave() -> None:
    space, times = landscape(seed=1)
    slow = space.families[1]
    search, tried = Search(space), []
    for _ in range(40):
        candidate = search.ask()
        assert candidate is not None
        tried.append(candidate.family_name)
        factor = 20.0 if candidate.family_name == slow.name else 1.0
        search.tell(told(candidate, times[candidate] * factor))
    assert 2 <= tried.count(slow.name) <= 5, "its share would be ten"


def test_what_is_preferred_comes_next_once(space: Space) -> None:
    a, b, c, d, *_ = space.candidates
    search = Search(space, [a, b])
    assert search.ask() == a
    search.prefer([c, a, replace(c, behaviour="wrong"), d, b])
    assert [search.ask() for _ in range(3)] == [c, d, b]
    assert search.ask() not in (a, b, c, d)


def test_what_an_earlier_run_measured_is_not_proposed_again(space: Space) -> None:
    search = Search(space)
    for candidate in space.candidates[2:]:
        search.remember(told(candidate, 20.0))
    assert {search.ask(), search.ask()} == set(space.candidates[:2])
    assert search.ask() is None
    assert len(search.study.trials) == len(space.candidates)


def test_it_goes_on_when_everything_fails(space: Space) -> None:
    search = Search(space)
    for _ in space.candidates:
        candidate = search.ask()
        assert candidate is not None
        search.tell(told(candidate, None))
    assert search.ask() is None
