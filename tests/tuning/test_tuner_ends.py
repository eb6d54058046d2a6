"""Ends of a search: budgets, what it leaves untried, what it refuses beforehand, and Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import LONG, patience
from toy_searches import WORKLOAD, children, recorded
from tuning_fakes import DEVICE, MATRIX, PROBLEM, FakeToolchain, Toy, ToyConfig, backend, tune_toy

from sparsegen import kernels
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import ConfigError, DatabaseReadOnlyError, MatrixError
from sparsegen.kernels.base import Device
from sparsegen.matrix import budget as memory
from sparsegen.matrix.features import Features
from sparsegen.operators import SpmmProblem
from sparsegen.system.child import Interrupted
from sparsegen.tuning.loop.limits import Limits
from sparsegen.tuning.loop.run import FIRST
from sparsegen.tuning.report import DEFAULTS
from sparsegen.tuning.search import parts
from sparsegen.tuning.search.listing import Lister
from sparsegen.tuning.space import Space
from sparsegen.tuning.tuner import Budget, Effort, Phase, Status, tune
from sparsegen.tuning_db import sqlite_files
from sparsegen.tuning_db.published import Tools, publish
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("toy")


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


class SwiftConfig(ToyConfig):
    pass


class Swift(Toy):
    """A family that the cost model takes for twice as fast as the toy family."""

    name, config_type = "swift", SwiftConfig

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> SwiftConfig:
        return SwiftConfig()

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: ToyConfig, device: Device
    ) -> float:
        return 0.5


@pytest.mark.parametrize("behaviour", ["right", "wrong"])
def test_what_a_search_measured_runs_after_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str
) -> None:
    """One trial leaves a promising family untried, which a look-up would take: it is tried whatever the budget."""
    monkeypatch.setitem(kernels._loaded, "swift", Swift())
    monkeypatch.setattr(
        parts,
        "first_to_try",
        lambda *given: [ToyConfig(), SwiftConfig(behaviour=behaviour), SwiftConfig()],
    )
    monkeypatch.setattr(Swift, "heuristic", lambda *given: SwiftConfig(behaviour=behaviour))
    result = tune(
        MATRIX,
        PROBLEM,
        device=DEVICE,
        store=store,
        families=["toy", "swift"],
        budget=Budget(trials=1),
        backend=backend(tmp_path, jobs=1),
    )
    assert [m.variant.config for m in recorded(store)] == [ToyConfig(), SwiftConfig(behaviour=behaviour)]
    choice = choose(WORKLOAD, DEVICE, store)
    assert (choice.how, choice.config) == (How.EXACT, result.winner.variant.config)
    assert result.counts.tried == 2


def test_families_that_were_not_asked_for_stay_untried(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernels._loaded, "swift", Swift())
    tune_toy(store, tmp_path, trials=1)
    assert [m.variant.config for m in recorded(store)] == [ToyConfig()]
    assert choose(WORKLOAD, DEVICE, store).family.name == "swift"


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


@pytest.mark.parametrize("trials", [3, 4], ids=["nothing to measure", "one to measure"])
def test_a_published_layer_is_refused_before_the_search(store: Store, tmp_path: Path, trials: int) -> None:
    tune_toy(store, tmp_path, trials=3)
    layer = tmp_path / "layer.db"
    told: list[Status] = []
    publish(store, layer, by="Ada", tools_of=lambda device: Tools())
    layer.chmod(0o644)
    before = layer.read_bytes()
    with pytest.raises(DatabaseReadOnlyError, match="is a published layer, which is only read"):
        tune(
            MATRIX, PROBLEM, device=DEVICE, store=layer, families=["toy"], backend=backend(tmp_path),
            budget=Budget(trials=trials), progress=lambda status, measurement=None: told.append(status),
        )  # fmt: skip
    assert told == [] and layer.read_bytes() == before


def test_a_file_is_opened_once_to_see_what_it_is_and_once_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened, connect = tmp_path / "tuning.db", [], sqlite_files.connect
    Store.open(file).close()

    def counted(path: Path, **options: Any) -> Any:
        opened.append(path)
        return connect(path, **options)

    monkeypatch.setattr(sqlite_files, "connect", counted)
    with ExitStack() as resources:
        known, _ = parts.databases(file, resources)
        assert not known.all_measurements()
    assert opened == [file] * 2


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


def test_ctrl_c_while_configs_are_listed_is_a_keyboard_interrupt_that_loses_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waited_for(self: Lister, *arguments: object, **options: object) -> Space:
        deadline = time.monotonic() + LONG
        while not recorded(store) and time.monotonic() < deadline:
            time.sleep(0.01)
        raise Interrupted("interrupted")

    monkeypatch.setattr(Lister, "space", waited_for)
    with pytest.raises(KeyboardInterrupt):
        tune_toy(store, tmp_path)
    assert recorded(store)
