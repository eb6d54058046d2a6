"""Replay: the recorded answers come back, trials are counted, and the conclusion says what they mean."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
from tuning_fakes import DEVICE, MATRIX, PROBLEM, TOY, ToyConfig

from benchmarks import recording
from benchmarks.recording import Recording, Tried
from benchmarks.replay import Comparison, Replay
from sparsegen import kernels
from sparsegen.matrix.features import Features
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning_db.records import Outcome, Workload

WORKLOAD = Workload(PROBLEM, MATRIX.fingerprint(), Features.of(MATRIX))
CANDIDATES, TPE, RANDOM = SamplerName.CANDIDATES, SamplerName.TPE, SamplerName.RANDOM


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Replay:
    """The toy's space of 12 configs: the best takes 10 µs, the next 11, and one fails."""
    monkeypatch.setitem(kernels._loaded, TOY.name, TOY)
    tried = []
    for config in TOY.space(PROBLEM, DEVICE):
        us = 10.0 + abs(config.size - 8) + 2.0 * abs(config.width - 4)
        wrong = config == ToyConfig(1, 1)
        outcome = Outcome.WRONG if wrong else Outcome.OK
        tried.append(Tried(config, outcome, None if wrong else us, 32, 0))
    return Replay(Recording("toy", WORKLOAD, DEVICE, tuple(tried)))


def test_the_recorded_answer_comes_back(replay: Replay) -> None:
    best, wrong = replay.measure(ToyConfig(8, 4)), replay.measure(ToyConfig(1, 1))
    assert best.sample is not None and best.sample.median_us == 10.0 and best.registers == 32
    assert wrong.outcome is Outcome.WRONG and wrong.sample is None
    assert len(replay.space.candidates) == 12 and replay.recording.best_us == 10.0


@pytest.mark.parametrize("sampler", [CANDIDATES, TPE, RANDOM])
def test_trials_end_at_the_goal(replay: Replay, sampler: SamplerName) -> None:
    counts = [replay.trials(sampler, seed) for seed in range(4)]
    assert all(1 <= count <= 12 for count in counts)
    assert counts == [replay.trials(sampler, seed) for seed in range(4)]
    assert replay.trials(sampler, 0, within=10.0) == 1 or replay.start(0) == [ToyConfig(1, 1)]


def test_a_search_that_is_given_up_is_infinite(replay: Replay) -> None:
    seed = next(s for s in range(20) if replay.start(s) != [ToyConfig(8, 4)])
    assert replay.trials(RANDOM, seed, most=1) == math.inf


def test_chance_needs_half_of_the_space_in_the_mean(replay: Replay) -> None:
    counts = [replay.trials(RANDOM, seed) for seed in range(60)]
    assert 5.0 < sum(counts) / len(counts) < 8.0  # 6.5 is expected


def compared(ours: float, tpe: float, random: float = 90.0) -> Comparison:
    spaces = {
        name: {CANDIDATES: [ours * f, ours * f], TPE: [tpe * f, tpe * f, tpe * f], RANDOM: [random]}
        for name, f in (("a", 1), ("b", 4))
    }
    return Comparison(spaces, 400, {})


def test_the_conclusion() -> None:
    assert compared(10, 30).conclusion == (
        "candidates needs 0.33 of the trials of tpe (20.0 against 60.0) to come within 3%, at most 0.5: it stays the "
        "default"
    )
    assert compared(20, 30).conclusion.endswith("more than 0.5: tpe has to take its place")
    assert compared(40, 30).conclusion.endswith("more than 0.5: tpe has to take its place")
    assert compared(10, 95, random=20).best_of_optuna is RANDOM


def test_searches_that_were_given_up_count_with_all_their_trials() -> None:
    some = Comparison({"a": {CANDIDATES: [10, 20, math.inf], TPE: [math.inf, math.inf, 30]}}, 100, {})
    assert some.median("a", CANDIDATES) == 20 and some.median("a", TPE) == 100
    assert some.samplers == (CANDIDATES, TPE) and some.share == pytest.approx(0.2)


RECORDED = (
    Path(__file__).parents[2] / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3-sm90" / "recorded.json.xz"
)


@pytest.mark.parametrize("recorded", recording.read(RECORDED), ids=lambda r: r.name)
def test_our_sampler_beats_chance_on_recorded_kernels(recorded: Recording) -> None:
    """Real times of an H100: the median of 5 starts comes within 3 % of the best in fewer trials than chance needs."""
    found = Replay(recorded)
    ours, chance = (
        statistics.median(found.trials(sampler, seed, most=len(recorded.tried)) for seed in range(5))
        for sampler in (CANDIDATES, RANDOM)
    )
    assert ours < min(60, chance)
