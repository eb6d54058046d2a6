"""Searches of the toy family on several fake devices, and an engine without processes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import tuning_fakes

from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import Problem, SpmmProblem
from sparsegen.tuning.engines.dealing import Outcome, Unwatched
from sparsegen.tuning.engines.engine import Assignment, End, Found, Request, SetUp, Task
from sparsegen.tuning.report import Budget, Status
from sparsegen.tuning.tuner import Backend
from sparsegen.tuning_db.records import Measurement, Workload
from sparsegen.tuning_db.store import Store

TRIALS = 8


def devices(count: int) -> list[Device]:
    return [replace(tuning_fakes.DEVICE, index=index) for index in range(count)]


def open_backend(device: Device, problem: Problem, *, baselines: bool, searches: int) -> Backend:
    """In a search's process: the toy family on the fake device; folders are beside the database."""
    tuning_fakes.install(setattr)
    if os.environ.get("TOY_LOST_DEVICE") == str(device.index):
        os.kill(os.getpid(), 9)
    folder = Path(os.environ["TOY_TOOLCHAIN"])
    return tuning_fakes.backend(folder, open_executor="engine_fakes:open_executor", jobs=1)


def open_executor(device: Device) -> tuning_fakes.FakeExecutor:
    """Any device, with made-up kernels and times."""
    return tuning_fakes.FakeExecutor()


def set_up(place: str | Path) -> SetUp:
    return SetUp(str(place), "engine_fakes:open_backend")


def matrix(number: int) -> CsrMatrix:
    return random_uniform(24, 16, 0.25, seed=number + 1)


PROBLEM = SpmmProblem(24, 16, 8)


def tasks(count: int, trials: int = TRIALS, model: Device = tuning_fakes.DEVICE) -> list[Task]:
    """Searches on as many patterns."""

    def read(number: int) -> Callable[[], CsrMatrix]:
        return lambda: matrix(number)

    request = Request(PROBLEM, Budget(trials=trials), families=("toy",), baselines=False)
    return [Task(f"task {number}", model, request, read(number)) for number in range(count)]


def workload(number: int) -> Workload:
    return Workload.of(PROBLEM, matrix(number))


class Recorder(Unwatched):
    """A watch that remembers, and that acts when a search has measured ``at`` variants.

    Attributes:
        told: events, in words.
        done: the most variants that a search said it had measured, over all of its attempts.
    """

    def __init__(self, at: int = 0, do: Callable[[int, str], None] | None = None) -> None:
        self.told: list[str] = []
        self.done: Counter[int] = Counter()
        self.where: dict[int, list[str]] = {}
        self._at, self._do = at, do

    def began(self, number: int, task: Task, where: str) -> None:
        self.told.append(f"{task.name} began")
        self.where.setdefault(number, []).append(where)

    def progressed(self, number: int, task: Task, status: Status) -> None:
        self.done[number] = max(self.done[number], status.counts.tried)
        if self._do is not None and status.counts.done >= self._at:
            do, self._do = self._do, None
            do(number, self.where[number][-1])

    def lost(self, number: int, task: Task, where: str, why: str) -> None:
        self.told.append(f"{task.name} lost")

    def ended(self, number: int, task: Task, outcome: Outcome) -> None:
        self.told.append(f"{task.name} ended")


def recorded(place: str | Path, number: int, model: Device = tuning_fakes.DEVICE) -> list[Measurement]:
    with Store.open(place, read_only=True) as store:
        return store.measurements(workload(number), model)


def require_whole(
    place: str | Path,
    count: int,
    recorder: Recorder,
    trials: int = TRIALS,
    model: Device = tuning_fakes.DEVICE,
) -> None:
    """Every search is finished; nothing that was said to be measured is lost, and no variant was searched twice."""
    for number in range(count):
        found = recorded(place, number, model)
        searched = Counter(m.variant for m in found if not m.final)
        assert set(searched.values()) == {1}, searched
        assert len(searched) == trials >= recorder.done[number], (number, recorder.done)
        finals = Counter(m.variant for m in found if m.final)
        assert finals and set(finals.values()) == {1}


class PlannedSearch:
    """A search that says what was planned, item after item."""

    def __init__(self, engine: PlannedEngine, where: str, news: Iterable[Status | End]) -> None:
        self.engine, self.where, self._news = engine, where, list(news)
        self.was_stopped = self.was_killed = False

    def news(self) -> Sequence[Status | End]:
        if self.was_stopped:
            return self._end([End(Found(was_interrupted=True))])
        if not self._news:
            return []
        return self._end([self._news.pop(0)])

    def _end(self, news: list[Status | End]) -> list[Status | End]:
        if isinstance(news[-1], End):
            self.engine.running.remove(self)
        return news

    def stop(self) -> None:
        self.was_stopped = True

    def kill(self) -> None:
        self.was_killed = True


class PlannedEngine:
    """Fake devices, whose searches go as planned.

    Args:
        plan: of each search that begins: what it says.
    """

    patience = 0.0

    def __init__(
        self, count: int, plan: Callable[[int], Iterable[Status | End]], models: Sequence[Device] = ()
    ) -> None:
        self.models = models or (tuning_fakes.DEVICE,)
        self.count, self._plan = count, plan
        self.running: list[PlannedSearch] = []
        self.begun: list[PlannedSearch] = []
        self.assigned: list[tuple[str, Assignment]] = []
        self.most = 0

    def capacity(self, model: Device) -> int:
        return self.count

    def begin(self, model: Device, assignment: Assignment) -> PlannedSearch:
        search = PlannedSearch(self, f"{model.key} {len(self.running)}", self._plan(len(self.begun)))
        self.running.append(search)
        self.begun.append(search)
        self.assigned.append((model.key, assignment))
        self.most = max(self.most, len(self.running))
        return search

    def close(self) -> None: ...
