"""Samplers propose every valid config once, learn from the study alone, and can be chosen."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from tuning_fakes import DEVICE, PROBLEM, TOY, ToyConfig, told

from sparsegen.errors import PackageMissingError
from sparsegen.kernels.config import Config
from sparsegen.tuning import samplers
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning.samplers.listed import Known
from sparsegen.tuning.samplers.optunas import DrawingSampler
from sparsegen.tuning.samplers.surrogate import Surrogate
from sparsegen.tuning.search.search import Search
from sparsegen.tuning.space import Space

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="Optuna's Gaussian process needs PyTorch")
EVERY = [pytest.param(name, marks=[needs_torch] * (name is SamplerName.GP)) for name in SamplerName]
FIRST: list[Config] = [ToyConfig(16, 1), ToyConfig(2, 2)]


def time_of(config: Config) -> float | None:
    """Returns the toy's time: size 8 and width 4 are the best, and width 1 fails if the size is 1."""
    size, width = config.to_dict()["size"], config.to_dict()["width"]
    assert isinstance(size, int) and isinstance(width, int)
    return None if size == width == 1 else 10.0 + abs(size - 8) + 2.0 * abs(width - 4)


@pytest.fixture
def space() -> Space:
    return Space.build([TOY], PROBLEM, DEVICE, whole=True)


@pytest.fixture
def storage(tmp_path: Path) -> BaseStorage:
    return JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))


@pytest.mark.parametrize("name", EVERY)
def test_every_valid_config_is_proposed_once_the_first_ones_first(name: SamplerName, space: Space) -> None:
    if name is SamplerName.GP:  # it takes a second for a proposal
        space = Space.build([TOY], PROBLEM, DEVICE)
    search = Search(space, FIRST, sampler=name)
    proposed: list[Config] = []
    waiting: list[Config] = []
    while (candidate := search.ask()) is not None:
        proposed.append(candidate)
        waiting.append(candidate)
        if len(waiting) > 2:
            search.tell(told(waiting[0], time_of(waiting.pop(0))))
    assert proposed[:2] == FIRST
    assert len(proposed) == len(set(proposed)) == len(space.candidates)
    assert set(proposed) == set(space.candidates)


@pytest.mark.parametrize("name", EVERY)
def test_a_study_from_a_storage_goes_on_as_if_nothing_had_ended(
    name: SamplerName, space: Space, storage: BaseStorage
) -> None:
    def begin(study: optuna.Study) -> Search:
        return Search(space, FIRST, sampler=name, seed=3, study=study)

    study = optuna.create_study(storage=storage, study_name="kept")
    search = begin(study)
    waiting = []
    for _ in range(15):
        candidate = search.ask()
        assert candidate is not None
        waiting.append(candidate)
        if len(waiting) > 3:  # three are under way when it ends
            search.tell(told(waiting[0], time_of(waiting.pop(0))))
    again = optuna.create_study()  # the same trials, in a study and with a sampler that know no more
    for trial in optuna.load_study(storage=storage, study_name="kept").get_trials():
        again.add_trial(trial)
    resumed = begin(again)
    assert [resumed.ask() for _ in range(2)] == [search.ask() for _ in range(2)]


def test_a_trial_says_what_was_found_out(space: Space) -> None:
    search = Search(space, FIRST)
    assert search.ask() == FIRST[0] and search.ask() == FIRST[1]
    search.tell(told(FIRST[0], 12.5))
    search.tell(told(FIRST[1], None))
    right, wrong = search.study.trials
    assert right.value == right.user_attrs["time_us"] == 12.5
    assert right.params == {"family": "toy", "toy.size": 16, "toy.width": 1, "toy.behaviour": "right"}
    assert right.user_attrs["family"] == "toy"
    assert right.user_attrs["config"] == "size=16 width=1 behaviour=right"
    assert (right.user_attrs["outcome"], wrong.user_attrs["outcome"]) == ("ok", "wrong")
    assert (right.user_attrs["registers"], right.user_attrs["spill_bytes"]) == (32, 0)
    assert right.user_attrs["source_digest"] == "ab" * 32 and "measured_at" in right.user_attrs
    assert wrong.state is optuna.trial.TrialState.FAIL and "time_us" not in wrong.user_attrs


def test_a_study_of_other_trials_makes_the_surrogate_anew(space: Space) -> None:
    sampler = samplers.make(SamplerName.CANDIDATES, space)

    def proposals(configs: list[Config]) -> Config:
        search = Search(space)
        search.study.sampler = sampler
        for config in configs:
            search.remember(told(config, time_of(config)))
        trial = search.study.ask()
        return sampler.parameters.suggested(trial)

    some, others = space.candidates[:20], space.candidates[20:40]
    first = proposals(some)
    proposals(others)
    assert proposals(some) == first


def test_what_is_under_way_counts_with_the_time_that_the_others_let_expect(space: Space) -> None:
    """A pending candidate changes how sure the model is, and not what it expects."""
    told_of, pending = [0, 5, 9, 14], [3, 21]
    model, asked = Surrogate(space.candidates), Surrogate(space.candidates)
    for place, number in enumerate(told_of):
        model.learn(number, 3.0 + 0.1 * place)
        asked.learn(number, 3.0 + 0.1 * place)
    for number in pending:
        asked.expect(number)
    assert asked._mean() == pytest.approx(model._mean(), abs=1e-9)
    assert (asked._variance <= model._variance + 1e-12).all()
    assert asked._variance[pending[0]] < 0.1 * model._variance[pending[0]]


def test_what_was_under_way_is_told_when_it_ends(space: Space) -> None:
    """A sampler that draws keeps a study of its own, in which what ran first has its time as soon as it is known."""
    sampler = samplers.make(SamplerName.TPE, space)
    assert isinstance(sampler, DrawingSampler)

    def see(trial: int, candidate: int, log_time: float) -> None:
        sampler._see(Known(trial, candidate, log_time))

    see(0, 0, math.nan)
    see(1, 1, 2.0)
    see(2, 2, math.nan)
    see(3, 3, math.inf)
    assert [t.state.name for t in sampler._mirror.trials] == ["RUNNING", "COMPLETE", "RUNNING"]
    see(0, 0, math.nan)
    see(1, 1, 2.0)
    assert [t.state.name for t in sampler._mirror.trials] == ["RUNNING", "COMPLETE", "RUNNING"]
    see(0, 0, 1.5)
    see(2, 2, math.inf)
    assert [t.state.name for t in sampler._mirror.trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert [t.value for t in sampler._mirror.trials] == [1.5, 2.0, None]
    see(0, 0, 1.5)
    assert len(sampler._mirror.trials) == 3


def test_what_is_expected_counts_until_it_was_measured(space: Space) -> None:
    times = np.geomspace(10.0, 40.0, len(space.candidates))
    unseen = np.ones(len(times), dtype=np.bool_)
    model, slower = Surrogate(space.candidates, times), Surrogate(space.candidates, 1000.0 * times)
    assert model.propose(unseen) == slower.propose(unseen) == 0
    assert model._mean()[6] < model._mean()[-7]
    for number in range(6):  # the first ones take far more than was expected, the last ones far less
        for known in (model, slower):
            known.learn(number, math.log(40.0))
            known.learn(len(times) - 1 - number, math.log(5.0))
    unseen[model.known] = False
    assert model._mean()[6] > model._mean()[-7]
    assert model.propose(unseen) == slower.propose(unseen) > len(times) // 2  # only how they compare counts


def test_what_nothing_is_expected_of_comes_last(space: Space) -> None:
    times = [math.nan, 5.0, math.inf, *([20.0] * (len(space.candidates) - 3))]
    mean = Surrogate(space.candidates, times)._mean()
    assert np.argmin(mean) == 1 and mean[0] == mean[2] == mean.max() and np.isfinite(mean).all()
    unknown = [math.inf] * len(space.candidates)
    assert (Surrogate(space.candidates, unknown)._mean() == 0.0).all()


def test_a_search_uses_what_the_list_expects(space: Space) -> None:
    best = len(space.candidates) - 2
    times = [10.0 if number == best else 30.0 for number in range(len(space.candidates))]
    aided = Search(dataclasses.replace(space, expected_us=times))
    assert aided.ask() == space.candidates[best] != Search(space).ask()


def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, space: Space) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PackageMissingError, match=r"pip install torch, or .*candidates, tpe, random"):
        Search(space, sampler=SamplerName.GP)


def test_another_seed_draws_others(space: Space) -> None:
    def drawn(seed: int) -> list[Config | None]:
        search = Search(space, sampler=SamplerName.RANDOM, seed=seed)
        return [search.ask() for _ in range(5)]

    assert drawn(1) == drawn(1) != drawn(2**40)
