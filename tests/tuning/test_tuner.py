"""Tuning from end to end on a fake device: what is recorded, resumed, named the winner, and survived."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tuning_fakes
import tuning_samples
from patience import LONG, is_running, patience, wait_until
from tuning_fakes import DEVICE, MATRIX, PROBLEM, RATES, FakeToolchain, ToyConfig, backend, tune_toy

from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import (
    CacheError,
    ConfigError,
    DeviceUnavailableError,
    LaunchError,
    MachineError,
    MatrixError,
    NoVariantError,
    SparsegenError,
)
from sparsegen.kernels.config import Config, UnknownConfig
from sparsegen.matrix import budget as memory
from sparsegen.matrix.features import Features
from sparsegen.tuning import finalists
from sparsegen.tuning.early_search import EarlySearch
from sparsegen.tuning.limits import Limits
from sparsegen.tuning.report import DEFAULTS, SamplerName
from sparsegen.tuning.run import FIRST
from sparsegen.tuning.search import Search
from sparsegen.tuning.space import Space
from sparsegen.tuning.tuner import Budget, Effort, Phase, Status, tune
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

WORKLOAD = Workload(PROBLEM, MATRIX.fingerprint(), Features.of(MATRIX))
FAKES = Path(tuning_fakes.__file__)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    tuning_fakes.install(monkeypatch.setattr)
    yield
    tuning_fakes.uninstall()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened


def recorded(store: Store, *, final: bool = False) -> list[Measurement]:
    return [m for m in store.measurements(WORKLOAD, DEVICE) if m.final == final]


# --- the ordinary run ---


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
    monkeypatch.setattr("sparsegen.tuning.first_configs.seeds", lambda: packaged)
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
    monkeypatch.setattr("sparsegen.tuning.first_configs.seeds", lambda: MemoryLayer(packaged, []))
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
    assert [(b.contender, b.version) for b in result.baselines] == [
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

    monkeypatch.setattr("sparsegen.tuning.tuner.EarlySearch", Late)
    result = tune_toy(store, tmp_path, trials=100)
    assert held.is_set() and result.counts.done == 12


# --- budgets ---


def test_a_budget_in_seconds_ends_the_search(store: Store, tmp_path: Path) -> None:
    seconds = patience(4.0)
    slow = FakeToolchain(tmp_path, seconds=seconds / 6)
    result = tune(
        MATRIX,
        PROBLEM,
        device=DEVICE,
        store=store,
        families=["toy"],
        budget=Budget(seconds=seconds),
        backend=backend(tmp_path, toolchain=slow, jobs=1),
    )
    assert 1 <= result.counts.done < 12, "compiling all of them takes twice the budget"


def test_the_first_few_variants_are_measured_whatever_the_budget(store: Store, tmp_path: Path) -> None:
    slow = backend(tmp_path, toolchain=FakeToolchain(tmp_path, seconds=0.5), jobs=1)
    result = tune(
        MATRIX,
        PROBLEM,
        device=DEVICE,
        store=store,
        families=["toy"],
        budget=Budget(seconds=0.1),
        backend=slow,
    )
    assert result.counts.done == FIRST and result.winner.sample is not None


def test_what_another_search_finds_does_not_come_before_them(store: Store, tmp_path: Path) -> None:
    """A start so slow that half of the budget is gone leaves the first proposals what they are."""
    other = replace(WORKLOAD, fingerprint="ab" * 32, problem=replace(PROBLEM, n=16))
    found = ToyConfig(size=16, width=1)

    def listen(status: Status, measurement: Measurement | None = None) -> None:
        if status.phase is Phase.STARTING:
            variant = Variant(found, "cd" * 32)
            store.add_measurement(Measurement(other, DEVICE, variant, Outcome.OK, Sample(1.0, 1.0, 1.0, 30)))

    tune(
        MATRIX,
        PROBLEM,
        device=DEVICE,
        store=store,
        families=["toy"],
        budget=Budget(seconds=0.1),
        backend=backend(tmp_path, jobs=1),
        progress=listen,
    )
    assert recorded(store)[0].variant.config == ToyConfig()


def test_limits() -> None:
    assert Budget().limits == DEFAULTS[Effort.NORMAL]
    assert Budget(effort=Effort.QUICK).limits == DEFAULTS[Effort.QUICK]
    assert Budget(trials=5).limits == (5, math.inf)
    assert Budget(seconds=2.5, effort=Effort.MAX).limits == (math.inf, 2.5)
    with pytest.raises(ConfigError, match="trials"):
        Budget(trials=0)
    with pytest.raises(ConfigError, match="seconds"):
        Budget(seconds=-1.0)


# --- resuming ---


def test_what_was_measured_is_not_measured_again(store: Store, tmp_path: Path) -> None:
    first = tune_toy(store, tmp_path, trials=5)
    assert first.counts.done == 5
    again = tune_toy(store, tmp_path, trials=5)
    assert again.counts.done == 0 and again.counts.resumed == 5
    assert again.winner == first.winner
    on = tune_toy(store, tmp_path, trials=12)
    assert on.counts.done == 7 and on.counts.resumed == 5
    variants = [m.variant for m in recorded(store)]
    assert len(variants) == len(set(variants)) == 12


def test_another_compiler_makes_other_variants(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=3)
    toolchain = FakeToolchain(tmp_path)
    toolchain.fingerprint = "fake 2"
    assert tune_toy(store, tmp_path, trials=3, toolchain=toolchain).counts.resumed == 0


def test_a_failure_is_known_too(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "does_not_compile", size=4, width=2)
    assert tune_toy(store, tmp_path, trials=4).counts.failed == 1
    once_more = tune_toy(store, tmp_path, trials=4).counts
    assert (once_more.resumed, once_more.failed, once_more.done) == (3, 1, 0)
    assert tune_toy(store, tmp_path, trials=4).counts.resumed == 4, "twice is enough"


@pytest.mark.parametrize("behaviour", ("does_not_compile", "crash", "fault", "hang"))
def test_what_failed_once_may_have_had_a_bad_day(
    behaviour: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        bad_day(patch, behaviour)
        assert tune_toy(store, tmp_path, trials=12, variant_seconds=patience(1.0)).counts.failed == 1
    result = tune_toy(store, tmp_path / "mended", trials=12)
    assert (result.counts.resumed, result.counts.done) == (11, 1)
    assert result.winner.variant.config.to_dict()["size"] == 8, "it is the fastest, and wins"
    assert tune_toy(store, tmp_path / "mended", trials=12).counts.resumed == 12


def test_what_was_wrong_stays_wrong(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "wrong", size=8, width=4)
    tune_toy(store, tmp_path, trials=12)
    assert tune_toy(store, tmp_path, trials=12).counts.resumed == 12


def test_another_winner_is_reported_with_what_the_old_one_costs(store: Store, tmp_path: Path) -> None:
    """The database says that size 2 won, by a source that is no longer made; today it takes 16 µs, and size 8 10 µs."""
    old = Variant(ToyConfig(2, 2), "ab" * 32)
    store.add_measurement(
        Measurement(WORKLOAD, DEVICE, old, Outcome.OK, Sample(1.0, 1.0, 1.0, 30), worst_error=0.1, final=True)
    )
    first = tune_toy(store, tmp_path, trials=100, again=True)
    assert first.flip is not None and first.flip.before.variant == old and first.flip.after == first.winner
    assert first.flip.cost == pytest.approx(tuning_fakes.time_of({"size": 2, "width": 2}) / 10.0, rel=0.05)


def test_the_same_winner_is_no_flip(store: Store, tmp_path: Path) -> None:
    first = tune_toy(store, tmp_path, trials=100)
    again = tune_toy(store, tmp_path, trials=100, again=True)
    assert first.flip is None and again.flip is None
    assert again.winner.variant == first.winner.variant and again.winner.final


def test_the_winner_of_before_is_among_the_finalists() -> None:
    """However far behind it is today: only finals can take its place."""
    of = tuning_samples.timed
    winner = of(10, tile_n=32, final=True)
    today = [of(20, tile_n=32, at=50), of(5, tile_n=64, at=51), of(30, tile_n=128, at=52)]
    picked = [m.variant for m in finalists.pick([winner, *today])]
    assert winner.variant in picked and of(30, tile_n=128).variant not in picked


def test_equal_bits_alone(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family may say of single configs that their bits differ."""
    monkeypatch.setattr(
        tuning_fakes.Toy, "is_deterministic", lambda self, problem, config: config.size < 8, raising=False
    )
    result = tune_toy(store, tmp_path, trials=100, deterministic=True)
    assert result.winner.variant.config == ToyConfig(4, 4)
    assert all(m.variant.config.size < 8 for m in recorded(store))
    assert result.pruned["toy: equal inputs give equal bits on every call"] == 6
    monkeypatch.setattr(
        tuning_fakes.Toy, "is_deterministic", lambda self, problem, config: False, raising=False
    )
    with pytest.raises(NoVariantError, match="equal bits"):
        tune_toy(store, tmp_path, trials=100, deterministic=True)


def test_all_is_measured_again_when_asked_for(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=5)
    again = tune_toy(store, tmp_path, trials=5, again=True)
    assert (again.counts.done, again.counts.resumed) == (5, 0) and len(recorded(store)) == 10


# --- the machine's bad day ---


def bad_day(monkeypatch: pytest.MonkeyPatch, what: str, folder: Path = Path()) -> None:
    """Let the best variant fail with nothing in its source that would tell."""
    monkeypatch.setenv("TOY_BAD_DAY", what)
    monkeypatch.setenv("TOY_FOLDER", str(folder))


class Troubled(FakeToolchain):
    """Fails as a machine does from the third compile on, or always if it is not ``late``."""

    def __init__(self, folder: Path, error: Exception) -> None:
        super().__init__(folder)
        self.error = error

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        if len(self.compiled) == 3:
            raise self.error
        return super().compile(family, entry, source, timeout=timeout)


@pytest.mark.parametrize(
    "error",
    (
        MachineError("g++ was ended by SIGKILL"),
        CacheError("No space left on device; set SPARSEGEN_CACHE"),
        OSError(28, "No space left on device"),
    ),
)
def test_trouble_of_the_machine_ends_the_search_and_is_not_recorded(
    error: Exception, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SparsegenError, match=r"SIGKILL|No space left"):
        tune_toy(store, tmp_path, trials=12, toolchain=Troubled(tmp_path, error), jobs=1)
    assert {m.outcome for m in recorded(store)} <= {Outcome.OK} and len(recorded(store)) <= 3
    assert tune_toy(store, tmp_path, trials=12).counts.tried == 12, "and it goes on where it was"


@pytest.mark.parametrize("name", ("SIGKILL", "SIGTERM", "SIGHUP", "SIGXCPU"))
def test_a_worker_that_somebody_kills_twice_ends_the_search(
    name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_day(monkeypatch, name)
    with pytest.raises(MachineError, match=f"failed twice.*{name}"):
        tune_toy(store, tmp_path, trials=12)
    assert {m.outcome for m in recorded(store)} <= {Outcome.OK}


def test_a_device_that_is_lost_for_good_ends_the_search(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was running when it left the bus is not to blame."""
    bad_day(monkeypatch, "lost for good", tmp_path)
    with pytest.raises(LaunchError, match="no such device"):
        tune_toy(store, tmp_path, trials=12)
    assert {m.outcome for m in recorded(store)} <= {Outcome.OK}


class Cleared(FakeToolchain):
    """Deletes what it compiles, or cuts it off, the first time."""

    def __init__(self, folder: Path, spoil: Callable[[Path], object]) -> None:
        super().__init__(folder)
        self.spoil = spoil

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        is_first = source not in self.compiled
        compiled = super().compile(family, entry, source, timeout=timeout)
        if is_first:
            self.spoil(compiled.binary)
        return compiled


@pytest.mark.parametrize("spoil", (Path.unlink, lambda path: path.write_bytes(b"")))
def test_a_binary_that_vanishes_before_it_is_loaded_is_compiled_again(
    spoil: Callable[[Path], object], store: Store, tmp_path: Path
) -> None:
    """As by `sparsegen cache clear` beside a search."""
    result = tune_toy(store, tmp_path, trials=12, toolchain=Cleared(tmp_path, spoil))
    assert result.counts.done == 12 and not result.counts.failed


# --- faults ---


def behave(monkeypatch: pytest.MonkeyPatch, behaviour: str, **values: int) -> None:
    """Let the variants with these values misbehave behind the tuner's back."""
    honest = tuning_fakes.render_toy

    def render(family, problem, config):  # type: ignore[no-untyped-def]
        matches = all(getattr(config, name) == value for name, value in values.items())
        return honest(family, problem, replace(config, behaviour=behaviour) if matches else config)

    monkeypatch.setattr("sparsegen.plan.variants.render", render)


@pytest.mark.parametrize(
    ("behaviour", "outcome", "reason"),
    [
        ("does_not_compile", Outcome.COMPILE_FAILED, "not today"),
        ("wrong", Outcome.WRONG, "values are wrong"),
        ("unstable", Outcome.WRONG, "right at first"),
        ("crash", Outcome.CRASHED, "SIGSEGV"),
        ("fault", Outcome.CRASHED, "illegal memory access"),
        ("hang", Outcome.TIMED_OUT, "no answer within"),
    ],
)
def test_a_bad_variant_is_recorded_and_never_wins(
    behaviour: str,
    outcome: Outcome,
    reason: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behave(monkeypatch, behaviour, size=8, width=4)  # it would be the fastest
    result = tune_toy(store, tmp_path, trials=12, variant_seconds=patience(1.0))
    bad = [m for m in recorded(store) if m.outcome is not Outcome.OK]
    assert [(m.outcome, m.variant.config.to_dict()["size"]) for m in bad] == [(outcome, 8)]
    assert reason in bad[0].reason and bad[0].sample is None
    assert result.counts.done == 11 and result.counts.failed == 1
    assert result.winner.variant != bad[0].variant and result.winner.outcome is Outcome.OK


def test_when_nothing_works_the_reasons_are_named(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, "wrong")
    with pytest.raises(NoVariantError, match=r"none of the 3 variants .* 3 × wrong: 1 of 192 values"):
        tune_toy(store, tmp_path, trials=3)
    assert [m.outcome for m in recorded(store)] == [Outcome.WRONG] * 3


def test_a_missing_compiler_ends_the_run_and_blames_no_variant(store: Store, tmp_path: Path) -> None:
    class Missing(FakeToolchain):
        def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
            raise DeviceUnavailableError("install a compiler")

    with pytest.raises(DeviceUnavailableError, match="install a compiler"):
        tune_toy(store, tmp_path, toolchain=Missing(tmp_path))
    assert not recorded(store)


def test_building_what_all_variants_share_is_not_the_searchs_time(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the emulator that takes most of a default search, which would then measure three variants."""
    seen: list[tuple[float, float]] = []
    honest = Limits.of

    def watched(budget: Budget, began: float) -> Limits:
        limits = honest(budget, began)
        seen.append((limits.began, limits.ends))
        return limits

    monkeypatch.setattr(Limits, "of", watched)

    class Slow(FakeToolchain):
        def make_ready(self) -> None:
            time.sleep(0.3)

    called = time.monotonic()
    tune(
        MATRIX, PROBLEM, device=DEVICE, store=store, families=["toy"], budget=Budget(2, 20.0),
        backend=backend(tmp_path, toolchain=Slow(tmp_path)),
    )  # fmt: skip
    ((began, ends),) = seen
    assert began >= called + 0.3 and ends == began + 20.0


def test_a_matrix_of_another_shape_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(24, 16\)"):
        tune(MATRIX, replace(PROBLEM, m=25), device=DEVICE, store=store, backend=backend(tmp_path))


def test_operands_that_memory_does_not_hold_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    with pytest.raises(MatrixError, match=r"operands and result would take .* of memory, over 1000 bytes"):
        tune_toy(store, tmp_path)


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_returns_the_best_so_far(store: Store, tmp_path: Path) -> None:
    def interrupt(status: Status, measurement: Measurement | None = None) -> None:
        if measurement and status.counts.done == 3:
            signal.raise_signal(signal.SIGINT)

    before = children(os.getpid())  # an earlier test's emulator may still be there
    result = tune_toy(store, tmp_path, trials=12, progress=interrupt)
    assert result.was_interrupted and result.counts.done == 3
    assert result.winner in recorded(store)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert set(children(os.getpid())) <= set(before)
    assert tune_toy(store, tmp_path, trials=12).counts.done == 9


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_before_the_first_result_is_a_keyboard_interrupt(store: Store, tmp_path: Path) -> None:
    def interrupt(status: Status, measurement: Measurement | None = None) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tune_toy(store, tmp_path, progress=interrupt)


# --- several processes ---


def children(pid: int) -> list[int]:
    """The child processes of a process that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        child = int(stat.parent.name)
        if int(fields[1]) == pid and is_running(child):
            found.append(child)
    return found


def start(database: Path, trials: int, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOY_SECONDS": str(seconds), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(FAKES), str(database), str(trials)], env=environment)


def test_kill_9_loses_nothing_and_leaves_no_process(store: Store, tmp_path: Path) -> None:
    process = start(tmp_path / "tuning.db", trials=12, seconds=0.2)
    wait_until(lambda: len(recorded(store)) >= 3)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_running(pid) for pid in workers))
    kept = len(recorded(store))
    assert 3 <= kept < 12
    result = tune_toy(store, tmp_path / "toolchain", trials=12)
    assert result.counts.resumed == kept and result.counts.done == 12 - kept


def test_two_tuners_share_one_database(store: Store, tmp_path: Path) -> None:
    both = [start(tmp_path / "tuning.db", trials=12, seconds=0.1) for _ in range(2)]
    assert [p.wait(LONG) for p in both] == [0, 0]
    measurements = recorded(store)
    assert {m.outcome for m in measurements} == {Outcome.OK}
    assert len(measurements) == len({m.variant for m in measurements}) == 12, (
        "each is measured by one of them"
    )
    assert store.winner(WORKLOAD, DEVICE) is not None
    assert not list((tmp_path / "cache" / "locks").glob("search-*"))


def test_what_a_killed_search_was_trying_is_tried_by_its_equal(store: Store, tmp_path: Path) -> None:
    killed = start(tmp_path / "tuning.db", trials=12, seconds=0.3)
    wait_until(lambda: len(recorded(store)) >= 1)
    other = start(tmp_path / "tuning.db", trials=12, seconds=0.1)
    wait_until(lambda: len(recorded(store)) >= 5)
    killed.kill()
    killed.wait()
    assert other.wait(LONG) == 0
    measurements = recorded(store)
    assert len(measurements) == len({m.variant for m in measurements}) == 12


def test_a_search_waits_for_the_one_variant_that_its_equal_measures(store: Store, tmp_path: Path) -> None:
    both = [start(tmp_path / "tuning.db", trials=1, seconds=0.3) for _ in range(2)]
    assert [p.wait(LONG) for p in both] == [0, 0]
    assert len(recorded(store)) == 1


def test_it_runs_in_a_thread(store: Store, tmp_path: Path) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(tune_toy(store, tmp_path, trials=2)))
    thread.start()
    thread.join(LONG)
    assert results and results[0].counts.done == 2


# --- finalists ---


def timed(median_us: float, size: int, family: str = "toy") -> Measurement:
    toy = ToyConfig(size=size, width=1)
    config = toy if family == "toy" else UnknownConfig(family, toy.key[1])
    sample = Sample(median_us, median_us, median_us, 30)
    return Measurement(WORKLOAD, DEVICE, Variant(config, "ab" * 32), Outcome.OK, sample)


def test_finalists_are_the_best_few_and_each_familys_best() -> None:
    measured = [timed(10.0, 1), timed(10.9, 2), timed(11.5, 4)]
    measured += [timed(14.0, 8, "other"), timed(14.5, 16, "other")]
    assert finalists.pick(measured) == [measured[0], measured[1], measured[3]]
    close, far_off = timed(10.0, 1), timed(16.0, 2, "far_off")
    assert finalists.pick([far_off, close]) == [close]
    assert finalists.pick([]) == []
    sizes = [timed(10.0 + 0.1 * i, size) for i, size in enumerate((1, 2, 4, 8, 16))]
    sixth = replace(timed(10.6, 16), variant=Variant(ToyConfig(size=16, width=2), "ab" * 32))
    assert finalists.pick([*sizes, sixth]) == sizes


def test_what_runs_without_a_search_is_a_finalist_however_far_off() -> None:
    measured = [timed(10.0, 1), timed(10.9, 2), timed(90.0, 4)]
    failed = replace(timed(1.0, 8), sample=None, outcome=Outcome.WRONG)
    defaults = [m.variant.config for m in (measured[2], failed)]
    assert finalists.pick([*measured, failed], defaults) == measured


def test_the_default_is_timed_again_with_the_finalists(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=100)
    final = {m.variant.config for m in store.measurements(WORKLOAD, DEVICE) if m.final}
    default = ToyConfig()
    assert tuning_fakes.time_of(default.to_dict()) > 1.5 * tuning_fakes.time_of({"size": 8, "width": 4})
    assert default in final and len(final) > 1


def test_the_finalists_schedule_fits_the_time() -> None:
    assert finalists.schedule([timed(10.0, 1)], 1.0) == (finalists.ROUNDS, finalists.SAMPLES_PER_ROUND)
    rounds, samples = finalists.schedule([timed(1e5, 1), timed(1e5, 2)], 2.0)  # a tenth of a second each
    assert rounds * samples * 0.2 <= 2.0 and rounds >= 2
    assert finalists.schedule([timed(1e7, 1)], 1.0) == (2, 1)


def test_a_finalist_that_turns_out_wrong_loses(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, "fading", size=8, width=4)
    result = tune_toy(store, tmp_path, trials=12)
    assert [m.outcome for m in recorded(store)] == [Outcome.OK] * 12
    finals = recorded(store, final=True)
    wrong = [m.variant for m in finals if m.outcome is Outcome.WRONG]
    assert [v.config.to_dict() for v in wrong] == [{"size": 8, "width": 4, "behaviour": "right"}]
    assert result.winner.variant not in wrong and result.winner.final  # of the next best few
