"""Number of variants that a quick search tries, on a clock that only its own steps move.

The seconds are those of traces on an H100's host (docs/notes/start-up.md).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sparsegen.tuning.loop import run as run_module
from sparsegen.tuning.loop.claims import Taken
from sparsegen.tuning.loop.limits import Limits
from sparsegen.tuning.loop.measuring import Measuring
from sparsegen.tuning.loop.pipeline import CompileAhead, Compiled
from sparsegen.tuning.loop.run import Run
from sparsegen.tuning.report import Budget, Effort

FIRST = 26  # candidates that are known before the list
IMPORTED = 0.7  # seconds of the command before it searches


@dataclass(frozen=True)
class Pace:
    """Durations on a machine, in seconds from the call on.

    Attributes:
        cores: number of cores that compile at once.
        first_compile, compile: duration of the first on each core, which waits for its compiler to start, and of all
            others.
        begins, ready, listed: times at which the first candidates are known, the worker is ready, and the list is
            there.
        measure, ask: duration of a measurement, and of a proposal.
    """

    cores: int
    first_compile: float
    compile: float
    begins: float
    ready: float
    listed: float
    measure: float
    ask: float


ALONE = Pace(16, 0.9, 0.35, 0.5, 1.3, 1.9, 0.016, 0.004)
FRESH = Pace(16, 1.8, 0.35, 0.8, 1.8, 2.1, 0.020, 0.004)  # nothing is in the page cache
TWO = Pace(16, 1.8, 0.7, 0.7, 1.6, 2.6, 0.025, 0.005)  # searches side by side: half of each core
TWO_CORES = Pace(2, 0.9, 0.35, 0.5, 1.3, 1.9, 0.016, 0.004)


class Clock:
    """A time that passes by what is done."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Ahead(CompileAhead):
    """Compiles that take their time and make nothing."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self.jobs, self._clock, self._pace = pace.cores, clock, pace
        self._under_way: list[tuple[int, float, float, int]] = []  # number, end, seconds, candidate
        self._count = 0
        self._recent_seconds = deque(maxlen=2 * self.jobs)

    @property
    def pending(self) -> int:
        return len(self._under_way)

    @property
    def ready(self) -> int:
        return len(self._done_by(self._clock.now))

    def _done_by(self, now: float) -> list[tuple[int, float, float, int]]:
        return [one for one in self._under_way if one[1] <= now]

    def submit(self, candidate: Any) -> None:
        varies = 0.6 + 0.8 * (37 * self._count % 11) / 10
        seconds = self._pace.first_compile if self._count < self.jobs else self._pace.compile * varies
        self._under_way.append((self._count, self._clock.now + seconds, seconds, candidate))
        self._count += 1

    def next(self, timeout: float) -> Compiled | None:
        if not self.ready:
            soonest = min((one[1] for one in self._under_way), default=float("inf"))
            self._clock.now = min(self._clock.now + timeout, soonest)
        if not self.ready:
            return None
        found = min(self._done_by(self._clock.now))
        self._under_way.remove(found)
        self._recent_seconds.append(found[2])
        rendered: Any = SimpleNamespace(digest=str(found[3]))
        return Compiled(found[3], rendered, SimpleNamespace(), None, found[2])  # type: ignore[arg-type]


class Search:
    """Proposes numbers: `FIRST` at once, the others when the list is there."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock, self._pace, self._asked = clock, pace, 0

    @property
    def is_set_up(self) -> bool:
        return self._clock.now >= self._pace.listed

    @property
    def has_next(self) -> bool:
        return self._asked < FIRST or self.is_set_up

    def ask(self) -> int:
        self._clock.now += self._pace.ask if self._asked >= FIRST else 0.001
        self._asked += 1
        return self._asked

    def tell(self, measurement: Any) -> None:
        self._clock.now += 0.001

    def prefer(self, candidates: Any) -> None:
        pass

    def complete(self) -> Any:
        return SimpleNamespace(space=SimpleNamespace(candidates=range(2000)))


class Session:
    """Measures, while the next proposal is made."""

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self._clock, self._pace = clock, pace

    def is_ready(self) -> bool:
        return self._clock.now >= self._pace.ready

    def measure(self, request: Any, meanwhile: Callable[[], None]) -> Any:
        began = self._clock.now
        meanwhile()
        self._clock.now = max(self._clock.now, began + self._pace.measure)
        return None


class Ledger:
    """Counts."""

    def __init__(self, clock: Clock) -> None:
        self.trials, self.fastest, self.counts = 0, None, None
        self.workload = self.device = None
        self.at: list[float] = []
        self._clock = clock

    def record(self, measurement: Any) -> None:
        self.trials += 1
        self.at.append(self._clock.now)

    def follow(self, *, at_once: bool = False) -> dict[Any, Any]:
        return {}


def searched(monkeypatch: pytest.MonkeyPatch, pace: Pace, budget: Budget) -> tuple[Ledger, float]:
    """Returns the record of a search on such a machine, and the time at which it leaves the rest to the finalists."""
    clock = Clock(pace.begins)
    monkeypatch.setattr(run_module, "time", clock)
    monkeypatch.setattr(run_module, "median_us", lambda measurement: 1.0)
    monkeypatch.setattr(Measuring, "measurement", lambda *given: None)
    monkeypatch.setattr(Run, "_status", lambda self: None)
    ledger: Any = Ledger(clock)
    claims: Any = SimpleNamespace(take=lambda candidate: Taken.FIRST, give_back=lambda candidate: None)
    session: Any = Session(clock, pace)
    search: Any = Search(clock, pace)
    run = Run(
        session, None, search, Ahead(clock, pace), ledger, Limits.of(budget, 0.0), lambda *given: None,
        threading.Event(), claims, tuple, lambda measured, on: None,
    )  # fmt: skip
    run._search_on()
    return ledger, clock.now


@pytest.mark.parametrize(
    ("pace", "least"), [(ALONE, 80), (FRESH, 70), (TWO, 40)], ids=["alone", "fresh", "two at once"]
)
def test_a_quick_search_tries_many(monkeypatch: pytest.MonkeyPatch, pace: Pace, least: int) -> None:
    ledger, ended = searched(monkeypatch, pace, Budget(effort=Effort.QUICK))
    assert ledger.trials >= least, (ledger.trials, ended)
    assert ended + 0.5 + IMPORTED <= 6.3


def test_two_cores_try_what_they_can_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, ended = searched(monkeypatch, TWO_CORES, Budget(effort=Effort.QUICK))
    by_compiles = 2 * (ended - TWO_CORES.begins - TWO_CORES.first_compile) / TWO_CORES.compile
    assert ledger.trials >= 0.8 * by_compiles, (ledger.trials, by_compiles)


def test_seconds_that_somebody_gave_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Pace(16, 1.8, 0.7, 0.7, 1.6, 2.6, 0.025, 0.005)
    _, ended = searched(monkeypatch, slow, Budget(seconds=3.0))
    assert ended <= 2.6
    _, quick = searched(monkeypatch, slow, Budget(effort=Effort.QUICK))
    assert 4.0 < quick <= 5.1
