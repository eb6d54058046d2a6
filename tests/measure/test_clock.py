"""The clock: samples, budgets, what precedes a sample, and what the host's delays spoil."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.measure import clock as clocks
from sparsegen.measure.clock import Clock, undisturbed
from sparsegen.measure.l2 import L2
from sparsegen.measure.ranking import ranked


class Recorded:
    """A device whose host is late for some samples, and what was asked of it."""

    def __init__(self, late: tuple[bool, ...] = (), us: float = 10.0) -> None:
        self.device = backends.emulator_device()
        self.asked: list[str] = []
        self.us, self.step = 0.0, us
        self._late = iter(late)

    def call(self) -> None:
        self.asked.append("call")
        self.us += self.step

    def event(self) -> Any:
        return Moment(self)

    def overwrite_l2(self) -> None:
        self.asked.append("flush")

    def clocks(self) -> tuple[int, int]:
        self.asked.append("clocks")
        return 1500, 4

    def synchronize(self) -> None: ...

    def is_late(self) -> bool:
        return next(self._late, False)


class Moment:
    def __init__(self, device: Recorded) -> None:
        self._device, self._us = device, 0.0

    def record(self) -> None:
        self._us = self._device.us

    def has_passed(self) -> bool:
        return self._device.is_late()

    def us_since(self, start: Any) -> float:
        return self._us - float(start._us)


def clock(device: Any) -> Clock:
    return Clock(device)


def test_a_call_is_timed_between_flush_and_clocks() -> None:
    device = Recorded()
    timing = clock(device).time(device.call, samples=2, warmup=1, lead=lambda: device.asked.append("lead"))
    assert timing == clocks.Timing((10.0, 10.0), 1500, 4) and timing.median_us == 10.0
    assert device.asked == ["call", *["flush", "lead", "call"] * 2, "clocks"]


def test_a_warm_cache_is_left_alone() -> None:
    device = Recorded()
    clock(device).time(device.call, samples=2, warmup=0, l2=L2.WARM)
    assert device.asked == ["call", "call", "clocks"]


def test_a_late_sample_is_taken_anew() -> None:
    device = Recorded(late=(False, True, False))
    timing = clock(device).time(device.call, samples=3, warmup=0)
    assert len(timing.samples_us) == 3 and device.asked.count("call") == 4


def test_stages_stop_where_it_is_hopeless() -> None:
    for limit, taken in ((9.0, 3), (11.0, 8)):
        device = Recorded()
        timing = clock(device).time_in_stages(device.call, samples=8, first_samples=3, limit_us=limit)
        assert timing.samples_us == (10.0,) * taken


def test_the_budget_ends_a_timing_after_its_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Recorded()
    assert len(clock(device).time(device.call, samples=10**9, warmup=2, budget_s=0.0).samples_us) == 1
    spent = clock(Recorded(us=2e6))
    assert len(spent.time_in_stages(device.call, samples=50, first_samples=5, limit_us=1e9).samples_us) <= 50


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Executor:
    return backends.open_executor(backends.find_device(request.param))


@pytest.mark.parametrize("l2", L2)
def test_every_device_has_what_a_clock_needs(executor: Executor, l2: L2) -> None:
    calls: list[int] = []
    one = Clock(executor)

    def call() -> None:
        calls.append(1)

    lead = one.lead_for(call)
    before = len(calls)
    timing = one.time(call, samples=5, warmup=2, l2=l2, lead=lead)
    assert len(timing.samples_us) >= 5 and min(timing.samples_us) >= 0
    assert len(calls) - before >= 7
    assert (lead is None) == (executor.device.backend == "emulator")


def test_calls_are_ranked() -> None:
    device, other = Recorded(us=30.0), Recorded()
    times = {"slow": 30.0, "fast": 5.0, "medium": 20.0}

    def call_of(us: float) -> Callable[[], None]:
        def call() -> None:
            device.us += us

        return call

    calls = [call_of(us) for us in times.values()]
    assert ranked(calls, device, clock(device), L2.COLD) == [1, 2, 0]  # type: ignore[arg-type]
    assert ranked([other.call], other, clock(other), L2.COLD) == [0] and not other.asked  # type: ignore[arg-type]


def test_samples_in_which_the_host_was_late_are_left_out() -> None:
    assert undisturbed([(10.0, False), (90.0, True), (11.0, False), (95.0, True)], samples=2) == [10.0, 11.0]


def test_a_host_that_is_always_late_is_part_of_what_is_measured() -> None:
    assert undisturbed([(50.0, True), (10.0, False), (51.0, True)], samples=3) == [50.0, 10.0, 51.0]


def test_few_samples_within_the_budget_are_all_there_are() -> None:
    assert undisturbed([(5e5, False)], samples=20) == [5e5]


def test_long_calls_are_not_queued_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls take no time to queue, and half of the budget each when they are waited for."""
    device, now = Recorded(), [0.0]
    done = [0]

    def synchronize() -> None:
        calls = device.asked.count("call")
        now[0] += 0.5 * (calls - done[0])
        done[0] = calls

    monkeypatch.setattr(device, "synchronize", synchronize, raising=False)
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])
    timing = clock(device).time(device.call, samples=20, warmup=2, budget_s=1.0)
    assert len(timing.samples_us) == 2, "and not ten"
