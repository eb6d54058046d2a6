"""Decisions on layers: raced once, recorded, and found again; for each way of being called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_samples import H100

import sparsegen
from sparsegen.cli.lookup import as_data
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense
from sparsegen.errors import LaunchError
from sparsegen.measure import decision, race
from sparsegen.measure.decision import Entrants, decide
from sparsegen.operators import Block, DsdProblem, MaskedConv2dProblem
from sparsegen.tuning_db.pins import Pin, Pins
from sparsegen.tuning_db.records import Called, Task, Variant
from sparsegen.tuning_db.store import Store

PROBLEM = MaskedConv2dProblem(height=64, width=48, channels=32, filters=32)
TIMES = {Called.HOST: (9.0, 7.0), Called.DEVICE: (3.0, 6.0)}


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Called]]:
    """Runs races with given times, from an empty record; yields the list of those that were run."""
    monkeypatch.setenv("SPARSEGEN_DB", str(tmp_path / "tuning.db"))
    monkeypatch.setattr(decision, "_decisions", {})
    monkeypatch.setattr(race, "_unrecorded", {})
    monkeypatch.setattr(race.backends, "driver_version", lambda _: "580.1")
    monkeypatch.setattr(race.backends, "open_executor", lambda _: Closed())
    run: list[Called] = []

    def timed(enter: Any, executor: Any, called: Called, l2: Any, calls: int) -> tuple[float, float]:
        assert calls == 3 and enter(executor) == (ours, dense)
        run.append(called)
        return TIMES[called]

    monkeypatch.setattr(race, "pair_us", timed)
    yield run


class Closed:
    def close(self) -> None: ...


ran: list[str] = []


def ours() -> None:
    ran.append("ours")


def dense() -> None:
    ran.append("dense")


def enter() -> Entrants:
    config = sparsegen.lookup(problem=PROBLEM, device=H100).config
    return Entrants(Variant(config, "ab" * 32), lambda _: (ours, dense), 3)


def never() -> Entrants:
    raise AssertionError("this is known")


def again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets decisions, as another process would have none."""
    monkeypatch.setattr(decision, "_decisions", {})


def test_both_ways_of_being_called_are_raced_once_and_outlive_the_process(
    entered: list[Called], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = decide(Task.CONVOLUTION, PROBLEM, H100, enter)
    assert first is not None and entered == list(Called)
    assert not first.ours_runs(Called.HOST) and first.ours_runs(Called.DEVICE)
    assert decide(Task.CONVOLUTION, PROBLEM, H100, never) is first
    again(monkeypatch)
    ran.clear()
    assert decide(Task.CONVOLUTION, PROBLEM, H100, enter) == first and len(entered) == 2
    assert ran == ["ours", "dense"], "each once, for a graph captures what calls from Python do not run"
    with Store.open(tmp_path / "tuning.db") as store:
        assert {(p.called, p.task, p.sparse_us) for p in store.all_probes()} == {
            (Called.HOST, Task.CONVOLUTION, 9.0),
            (Called.DEVICE, Task.CONVOLUTION, 3.0),
        }
    said = sparsegen.lookup(problem=PROBLEM, device=H100).explain()
    assert "convolution called from Python: sparse 9 µs, dense 7 µs: dense wins" in said
    assert "convolution called in a graph or behind a busy queue: sparse 3 µs" in said
    assert first.why in said.replace("\n  ", "; ")


def test_one_answer_for_both_ways_needs_nothing_more(
    entered: list[Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TIMES, Called.HOST, (5.0, 7.0))
    first = decide(Task.CONVOLUTION, PROBLEM, H100, enter)
    again(monkeypatch)
    assert decide(Task.CONVOLUTION, PROBLEM, H100, never) == first


def test_a_win_by_the_host_alone_is_none(entered: list[Called], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other work of the device its time alone counts, from Python too."""
    for device_us, ours_run in ((60.0, False), (46.9, True), (40.0, True)):
        monkeypatch.setitem(TIMES, Called.HOST, (61.0, 70.0))
        monkeypatch.setitem(TIMES, Called.DEVICE, (device_us, 46.0))
        found = decide(Task.PRODUCT, replace(PROBLEM, width=int(device_us)), H100, enter)
        assert found is not None and found.from_host is ours_run, device_us
        assert found.on_device is (device_us < 46.0)


def test_another_task_or_problem_is_raced_by_itself(entered: list[Called]) -> None:
    decide(Task.CONVOLUTION, PROBLEM, H100, enter)
    decide(Task.DROPOUT, PROBLEM, H100, enter)
    decide(Task.CONVOLUTION, replace(PROBLEM, width=64), H100, enter)
    assert len(entered) == 6 and len(decision.decisions()) == 3


def test_a_capture_is_answered_by_what_is_known_and_by_nothing_else(
    entered: list[Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as capturing:
        capturing.setattr(decision, "is_capturing", lambda: True)
        assert decide(Task.CONVOLUTION, PROBLEM, H100, never) is None
    decide(Task.CONVOLUTION, PROBLEM, H100, enter)
    again(monkeypatch)
    monkeypatch.setattr(decision, "is_capturing", lambda: True)
    found = decide(Task.CONVOLUTION, PROBLEM, H100, never)
    assert found is not None and found.on_device


def test_a_variant_that_was_not_raced_is(entered: list[Called], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuning that found a faster variant has this effect."""
    made = enter()
    config = replace(made.variant.config, **dict([other_value(made.variant.config)]))
    decide(Task.CONVOLUTION, PROBLEM, H100, lambda: replace(made, variant=Variant(config, "cd" * 32)))
    again(monkeypatch)
    decide(Task.CONVOLUTION, PROBLEM, H100, enter)
    assert len(entered) == 4


def other_value(config: Any) -> tuple[str, Any]:
    """One tunable with another value than the config has."""
    tunable = next(t for t in type(config).tunables() if len(t.choices) > 1)
    return tunable.name, next(value for value in tunable.choices if value != getattr(config, tunable.name))


def test_what_is_pinned_runs(entered: list[Called], monkeypatch: pytest.MonkeyPatch) -> None:
    choice = sparsegen.lookup(problem=PROBLEM, device=H100)
    fingerprint = PROBLEM.fingerprint(PROBLEM.without_pattern)
    pins = Pins().with_pins([Pin(PROBLEM, fingerprint, H100.key, choice.config, "a test")])
    layers = decision.shared_layers(None)
    monkeypatch.setattr(
        decision, "shared_layers", lambda _: replace(layers, rules=replace(layers.rules, pins=pins))
    )
    found = decide(Task.CONVOLUTION, PROBLEM, H100, never)
    assert found is not None and found.from_host and found.on_device and "a test" in found.why


def test_where_nothing_can_be_timed_ours_runs(
    entered: list[Called], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise LaunchError("no memory")

    monkeypatch.setattr(race, "pair_us", full)
    found = decide(Task.CONVOLUTION, PROBLEM, H100, enter)
    assert found == Decision(True, True, "our kernels run; they cannot be timed: no memory")
    assert "no memory" in caplog.text


def test_what_the_caller_or_the_emulator_leaves_no_choice_of_is_not_raced() -> None:
    emulator = sparsegen.backends.emulator_device()
    for device, dense, ours_runs in (
        (emulator, Dense.AUTO, True),
        (None, Dense.AUTO, True),
        (H100, Dense.NEVER, True),
        (H100, Dense.ALWAYS, False),
        (emulator, Dense.ALWAYS, False),
    ):
        found = decide(Task.CONVOLUTION, PROBLEM, device, never, dense)
        assert found is not None and found.is_settled and found.ours_runs() is ours_runs, found.why


def test_a_masked_product_is_raced_as_a_product_and_told(
    entered: list[Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    product = DsdProblem(256, 256, 256, block=Block(128, 128))

    def entrants() -> Entrants:
        config = sparsegen.lookup(problem=product, device=H100).config
        return Entrants(Variant(config, "ab" * 32), lambda _: (ours, dense), 3)

    first = decide(Task.PRODUCT, product, H100, entrants)
    again(monkeypatch)
    assert decide(Task.PRODUCT, product, H100, entrants) == first and len(entered) == 2
    choice = sparsegen.lookup(problem=product, device=H100)
    assert "product called from Python: sparse 9 µs, dense 7 µs: dense wins" in choice.explain()
    told = [
        (one["task"], one["called"], one["sparse_us"], one["dense_us"]) for one in as_data(choice)["raced"]
    ]
    assert told == [("product", "host", 9.0, 7.0), ("product", "device", 3.0, 6.0)]
