"""Duration of the timing of several implementations: as short as their order allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sparsegen.measure import ranking
from sparsegen.measure.clock import Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.ranking import ranked, rough_us


class Bench:
    """A host and a device whose time passes only in calls, and a clock that notes what it is asked for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0
        self.timed: list[dict[str, Any]] = []

    def call(self, *seconds: float) -> Callable[[], None]:
        """A call that takes so long on the host, the first time and so on; as long as the last ever after."""
        left = list(seconds)

        def made() -> None:
            self.calls += 1
            self.seconds += left.pop(0) if len(left) > 1 else left[0]

        return made

    def synchronize(self) -> None: ...

    def perf_counter(self) -> float:
        return self.seconds

    def lead_for(self, call: Callable[[], None]) -> str:
        return "lead"

    def time(self, call: Callable[[], None], **asked: Any) -> Timing:
        self.timed.append(asked)
        return Timing((42.0,))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(ranking, "time", SimpleNamespace(perf_counter=made.perf_counter))
    return made


def rough(bench: Bench, *seconds: float, fastest_us: float = math.inf, l2: L2 = L2.COLD) -> float:
    made: Any = bench
    return rough_us(bench.call(*seconds), made, made, fastest_us=fastest_us, l2=l2)


def test_a_quick_call_is_timed_after_its_first(bench: Bench) -> None:
    assert rough(bench, 10e-6, l2=L2.WARM) == 42.0
    assert bench.calls == 1
    [asked] = bench.timed
    assert asked == {"samples": 7, "l2": L2.WARM, "budget_s": 0.03, "warmup": 2, "lead": "lead"}


def test_what_only_its_first_call_loads_is_timed(bench: Bench) -> None:
    assert rough(bench, 2.0, 10e-6) == 42.0 and bench.calls == 2


@pytest.mark.parametrize(
    ("seconds", "fastest_us", "is_timed"),
    [
        (0.029, math.inf, True),
        (0.031, math.inf, False),  # the host knows well enough what takes longer
        (0.0059, 1000.0, True),
        (0.0061, 1000.0, False),  # more than five times the fastest, and a millisecond for the host
        (0.0009, 10.0, True),
    ],
)
def test_what_is_slow_or_hopeless_is_called_twice_and_no_more(
    bench: Bench, seconds: float, fastest_us: float, is_timed: bool
) -> None:
    found = rough(bench, seconds, fastest_us=fastest_us)
    assert bool(bench.timed) == is_timed
    assert (found, bench.calls) == ((42.0, 1) if is_timed else (pytest.approx(seconds * 1e6), 2))


def test_of_two_slow_calls_the_second_times_count(bench: Bench) -> None:
    made: Any = bench
    calls = [bench.call(1.0, 3.0), bench.call(4.0, 2.0), bench.call(0.04, 0.05)]
    assert ranked(calls[:2], made, made, L2.COLD) == [1, 0]
    assert ranked(calls, made, made, L2.COLD) == [2, 1, 0] and not bench.timed
