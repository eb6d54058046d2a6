"""Tuning from end to end on a fake device: what is recorded, measured first and named the winner."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tuning_fakes
from patience import LONG
from toy_searches import WORKLOAD, recorded
from tuning_fakes import DEVICE, MATRIX, PROBLEM, RATES, ToyConfig, backend, tune_toy

from sparsegen.kernels.config import Config, UnknownConfig
from sparsegen.tuning.loop.early_search import EarlySearch
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning.search.search import Search
from sparsegen.tuning.space import Space
from sparsegen.tuning.tuner import Budget, Phase, Status, tune
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("toy")


def test_the_best_config_of_a_small_space_wins_and_everything_is_recorded(
    store: Store, tmp_path: Path
) -> None:
    result = tune_toy(store, tmp_path, trials=100)
    assert result.winner.variant.config.to_dict() == {"size": 8, "width": 4, "behaviour": "right"}
    assert result.winner.final and result.winner.outcome is Outcome.OK
    assert result.space_size == 12 and result.counts.done == 12 and result.counts.pruned == 3
    assert result.pruned == {"toy: width is at most size": 3}
    assert len(recorded(store)) == 12
    assert store.winner(WORKLOAD, DEVICE) == result.winner
    measured = recorded(store)[0]
    assert measured.registers == 32 and measured.sample is not None and measured.sample.clock_mhz == 1000
    assert result.baselines_skipped == "no baselines here" and not result.was_interrupted


def test_without_measurements_the_heuristic_is_measured_first(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=1, jobs=1)
    assert [m.variant.config.to_dict() for m in recorded(store)] == [ToyConfig().to_dict()]


def test_what_won_on_a_similar_workload_is_measured_first(store: Store, tmp_path: Path) -> None:
    other = replace(WORKLOAD, fingerprint="ab" * 32, problem=replace(PROBLEM, n=16))
    config = ToyConfig(size=16, width=1)
    variant = Variant(config, "cd" * 32)
    store.add_measurement(Measurement(other, DEVICE, variant, Outcome.OK, Sample(1.0, 1.0, 1.0, 30)))
    tune_toy(store, tmp_path, trials=2, jobs=1)
    heuristic = ToyConfig()
    assert [m.variant.config for m in recorded(store)] == [config, heuristic]


def test_what_the_seeds_say_of_the_same_workload_is_measured_first(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a short search could end with something slower than dispatch would have taken without it."""
    times = {(8, 1): 3.0, (16, 1): 1.0, (4, 4): 2.0}
    configs = {size: ToyConfig(*size) for size in times}
    known = [
        Measurement(WORKLOAD, DEVICE, Variant(configs[s], "cd" * 32), Outcome.OK, Sample(us, us, us, 30))
        for s, us in times.items()
    ]
    unknown = replace(known[0], variant=Variant(UnknownConfig("gone", (("size", 1),)), "cd" * 32))
    packaged = MemoryLayer([*known, unknown], [])
    monkeypatch.setattr("sparsegen.tuning.search.first_configs.seeds", lambda: packaged)
    tune_toy(store, tmp_path, trials=3, jobs=1)
    heuristic = ToyConfig()
    assert [m.variant.config for m in recorded(store)] == [configs[16, 1], heuristic, configs[4, 4]]


def test_seeds_that_do_not_suit_do_not_hide_those_that_do(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [ToyConfig(*size) for size in ((2, 4), (16, 1))]
    packaged = [
        Measurement(WORKLOAD, DEVICE, Variant(c, "cd" * 32), Outcome.OK, Sample(us, us, us, 30))
        for us, c in enumerate(configs, start=1)
    ]
    monkeypatch.setattr("sparsegen.tuning.search.first_configs.seeds", lambda: MemoryLayer(packaged, []))
    tune_toy(store, tmp_path, trials=2, jobs=1)
    heuristic = ToyConfig()
    assert [m.variant.config for m in recorded(store)] == [configs[1], heuristic]


def test_what_another_search_finds_meanwhile_is_measured_in_the_second_half(
    store: Store, tmp_path: Path
) -> None:
    other = replace(WORKLOAD, fingerprint="ab" * 32, problem=replace(PROBLEM, n=16))
    config = ToyConfig(size=16, width=1)

    def listen(status: Status, measurement: Measurement | None = None) -> None:
        if measurement and status.counts.done == 1:
            variant = Variant(config, "cd" * 32)
            store.add_measurement(Measurement(other, DEVICE, variant, Outcome.OK, Sample(1.0, 1.0, 1.0, 30)))

    tune_toy(store, tmp_path, trials=4, jobs=1, progress=listen)
    assert config in [m.variant.config for m in recorded(store)][2:]


def test_baselines_are_timed_once_and_compared(store: Store, tmp_path: Path) -> None:
    session = "tuning_fakes:FakeBaselines"
    result = tune_toy(store, tmp_path, trials=12, baseline_session=session)
    assert [(b.name, b.version) for b in result.baselines] == [
        ("cublas", "1.2 (default)"),
        ("cusparse", "3.4"),
    ]
    assert result.speedup_over("cublas") == pytest.approx(0.6)  # honest where dense is faster
    assert result.speedup_over("cusparse") == pytest.approx(3.0)
    assert result.speedup_over("nobody") is None and result.baselines_skipped == ""
    again = tune_toy(store, tmp_path, trials=12, baseline_session="tuning_fakes:BrokenBaselines")
    assert again.baselines == result.baselines


def test_rates_are_measured_beside_the_first_baselines(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=2)
    assert store.rates(DEVICE) is None, "nobody measured them"
    with Store.open(tmp_path / "other.db") as other:
        for problem in (PROBLEM, replace(PROBLEM, n=16)):
            tune(
                MATRIX,
                problem,
                device=DEVICE,
                store=other,
                families=["toy"],
                budget=Budget(trials=2),
                backend=backend(tmp_path, baseline_session="tuning_fakes:FakeBaselines"),
            )
        assert other.rates(DEVICE) == RATES and len(other.all_rates()) == 1, "once"


@pytest.mark.parametrize("session", ["BaselinesWithoutRates", "BaselinesWithUncompiledRates"])
def test_rates_that_fail_do_not_spoil_the_run(store: Store, tmp_path: Path, session: str) -> None:
    result = tune_toy(store, tmp_path, trials=2, baseline_session=f"tuning_fakes:{session}")
    assert len(result.baselines) == 2 and not result.baselines_skipped and store.rates(DEVICE) is None


@pytest.mark.parametrize(
    ("session", "why"),
    [("BrokenBaselines", "out of memory"), ("UncompiledBaselines", "did not compile in time")],
)
def test_baselines_that_fail_do_not_spoil_the_run(
    store: Store, tmp_path: Path, session: str, why: str
) -> None:
    result = tune_toy(store, tmp_path, trials=2, baseline_session=f"tuning_fakes:{session}")
    assert why in result.baselines_skipped and not result.baselines
    assert result.winner.outcome is Outcome.OK


def test_progress_tells_every_trial_and_phase(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[Status, Measurement | None]] = []

    def listen(status: Status, measurement: Measurement | None = None) -> None:
        seen.append((status, measurement))

    tune_toy(store, tmp_path, trials=4, progress=listen)
    assert [m for _, m in seen if m] == recorded(store)
    phases = list(dict.fromkeys(status.phase for status, _ in seen))
    assert phases == [Phase.STARTING, Phase.SEARCHING, Phase.FINALISTS]
    last = seen[-1][0]
    assert last.planned == 4 and last.counts.done == 4 and last.best is not None
    assert last.seconds_left == math.inf


def test_the_sampler_that_is_asked_for_chooses(store: Store, tmp_path: Path) -> None:
    tune(
        MATRIX,
        PROBLEM,
        device=DEVICE,
        store=store,
        families=["toy"],
        budget=Budget(trials=8),
        sampler=SamplerName.RANDOM,
        seed=5,
        backend=backend(tmp_path, jobs=1),
    )
    space = Space.build([tuning_fakes.TOY], PROBLEM, DEVICE, first=[ToyConfig()])
    chance = Search(space, [ToyConfig()], sampler=SamplerName.RANDOM, seed=5)
    assert [m.variant.config for m in recorded(store)] == [chance.ask() for _ in range(8)]


def test_a_list_that_comes_while_nothing_is_pending_does_not_end_the_search(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that comes before the list of candidates is tried, and just then the list is there."""
    held = threading.Event()

    class Late(EarlySearch):
        def __init__(self, first: Sequence[Config], set_up: Callable[[], Search]) -> None:
            super().__init__(first, lambda: held.wait(LONG) and set_up())  # type: ignore[arg-type, return-value]

        @property
        def has_next(self) -> bool:
            answer = super().has_next
            if not answer and len(self._told) == len(self._asked):
                held.set()
                self._future.result()
            return answer

    monkeypatch.setattr("sparsegen.tuning.search.parts.EarlySearch", Late)
    result = tune_toy(store, tmp_path, trials=100)
    assert held.is_set() and result.counts.done == 12
