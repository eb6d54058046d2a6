"""Deals searches to the devices of an engine: each device gets the next one when it is free."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sparsegen.errors import (
    DatabaseUnavailableError,
    MachineError,
    MatrixError,
    NoVariantError,
    SparsegenError,
    SuiteError,
)
from sparsegen.kernels.base import Device
from sparsegen.tuning.engines.engine import Assignment, End, Engine, Found, Running, Task
from sparsegen.tuning.report import Status

ATTEMPTS = 3  # attempts of a search that is lost with its device, host or process
POLL_SECONDS = 0.02
SERVER_SECONDS = (
    10.0  # before a search begins again that found the database's server away; twice that, next time
)
STOP_SECONDS = 60.0  # time for searches to end by themselves


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a task.

    Attributes:
        found: None if an error ended it, or if it was not begun.
        error: `NoVariantError`, `MatrixError` and the like; a `MachineError` after too many attempts.
        where: the device that it last ran on.
        attempts: number of times that it was begun.
        seconds: time from its first beginning to its end, in this run.
    """

    found: Found | None = None
    error: SparsegenError | None = None
    where: str = ""
    attempts: int = 0
    seconds: float = 0.0


class Watch(Protocol):
    """Told what goes on, from the thread that deals. ``number`` is the task's place in the list, from 0."""

    def planned(self, count: int) -> None:
        """Announces that ``count`` searches are to be run."""

    def began(self, number: int, task: Task, where: str) -> None: ...

    def progressed(self, number: int, task: Task, status: Status) -> None: ...

    def lost(self, number: int, task: Task, where: str, why: str) -> None:
        """The search is begun again, elsewhere or in a fresh process; it goes on with all that was recorded."""

    def ended(self, number: int, task: Task, outcome: Outcome) -> None: ...


class Unwatched:
    """A watch that reports nothing."""

    def planned(self, count: int) -> None: ...

    def began(self, number: int, task: Task, where: str) -> None: ...

    def progressed(self, number: int, task: Task, status: Status) -> None: ...

    def lost(self, number: int, task: Task, where: str, why: str) -> None: ...

    def ended(self, number: int, task: Task, outcome: Outcome) -> None: ...


def deal(
    tasks: Sequence[Task],
    engine: Engine,
    *,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
    deadline: float | None = None,
) -> list[Outcome]:
    """Run every task, each on one device from its beginning to its end, as many at once as there are devices.

    A search that is lost with its process, its host or the database's server is begun again, up to `ATTEMPTS` times,
    and takes up what it recorded. One that fails for reasons of its own ends as an outcome with its error; errors that
    would meet every other search too, such as a database that cannot be written, end the run.

    Args:
        stop: an event that, once set, ends all searches soon.
        deadline: no search begins later, in `time.monotonic` seconds.

    Returns:
        The outcome of each task, in their order; one that was not begun has no attempts.

    Raises:
        SparsegenError: see above; or no device is left, and then it is what the last one was lost with.
    """
    dealer = _Dealer(tasks, engine, watch or Unwatched(), stop or threading.Event(), deadline)
    try:
        dealer.run()
    finally:
        dealer.kill()
    return dealer.outcomes


@dataclass
class _Begun:
    """A search under way."""

    number: int
    running: Running
    was_announced: bool = False


class _Dealer:
    def __init__(
        self,
        tasks: Sequence[Task],
        engine: Engine,
        watch: Watch,
        stop: threading.Event,
        deadline: float | None,
    ) -> None:
        self._tasks, self._engine, self._watch = tasks, engine, watch
        self._stop, self._deadline = stop, deadline
        self._waiting = {model.key: deque[int]() for model in engine.models}
        for number, task in enumerate(tasks):
            self._waiting[task.model.key].append(number)
        self._begun: list[_Begun] = []
        self._first_began: dict[int, float] = {}
        self._last_loss: SparsegenError | None = None
        self._had_devices = time.monotonic()
        self._rests_until = 0.0
        self._ends: float | None = None  # since when searches are asked to stop, and until when they may
        self.outcomes = [Outcome()] * len(tasks)

    def run(self) -> None:
        """Runs until every search has ended, or none may begin any more."""
        self._watch.planned(len(self._tasks))
        while True:
            may_begin = self._may_begin()
            is_news = may_begin and not self._is_resting() and self._begin_all()
            for begun in list(self._begun):
                is_news |= self._hear(begun)
            if self._ends is not None and time.monotonic() > self._ends:
                return
            if not self._begun and not (may_begin and any(self._waiting.values())):
                return
            if not is_news:
                self._require_devices()
                time.sleep(POLL_SECONDS)

    def _may_begin(self) -> bool:
        """True if another search may begin; once ``stop`` is set, also asks the running ones to end."""
        if self._stop.is_set() and self._ends is None:
            self._ends = time.monotonic() + STOP_SECONDS
            for begun in self._begun:
                begun.running.stop()
        is_late = self._deadline is not None and time.monotonic() >= self._deadline
        return self._ends is None and not is_late

    def _is_resting(self) -> bool:
        """True while the database's server is given time to come back."""
        return time.monotonic() < self._rests_until

    def _begin_all(self) -> bool:
        """Give every free device a search; whether any began."""
        began = False
        for model in self._engine.models:
            waiting = self._waiting[model.key]
            capacity = self._engine.capacity(model) if waiting else 0
            while waiting and self._count(model) < capacity:
                self._begin(waiting.popleft(), model)
                began = True
        return began

    def _begin(self, number: int, model: Device) -> None:
        task, before = self._tasks[number], self.outcomes[number]
        self._first_began.setdefault(number, time.monotonic())
        self.outcomes[number] = replace(before, attempts=before.attempts + 1)
        try:
            matrix = task.matrix()
        except SparsegenError as error:
            self._end(number, End(error=error))
            return
        # Results that a lost attempt recorded are not measured again.
        request = task.request if before.attempts == 0 else replace(task.request, again=False)
        left = len(self._begun) + 1 + sum(map(len, self._waiting.values()))
        devices = sum(self._engine.capacity(m) for m in self._engine.models)
        assignment = Assignment(request, matrix, min(left, devices))
        self._begun.append(_Begun(number, self._engine.begin(model, assignment)))

    def _count(self, model: Device) -> int:
        return sum(self._tasks[begun.number].model.key == model.key for begun in self._begun)

    def _hear(self, begun: _Begun) -> bool:
        """Pass on what a search says; whether it said anything."""
        number, running = begun.number, begun.running
        news = running.news()
        if running.where and not begun.was_announced:
            begun.was_announced = True
            self.outcomes[number] = replace(self.outcomes[number], where=running.where)
            self._watch.began(number, self._tasks[number], running.where)
        for item in news:
            if isinstance(item, Status):
                self._watch.progressed(number, self._tasks[number], item)
            else:
                self._begun.remove(begun)
                self._end(number, item)
        return bool(news)

    def _end(self, number: int, end: End) -> None:
        task, outcome = self._tasks[number], self.outcomes[number]
        if end.found is not None and end.found.was_interrupted and not self._stop.is_set():
            end = End(error=MachineError("it was cut off and ended by itself"), was_lost=True)
        if end.was_lost and end.error is not None:
            if self._stop.is_set():
                end = End(Found(was_interrupted=True))
            elif outcome.attempts < ATTEMPTS:
                self._last_loss = end.error
                if isinstance(end.error, DatabaseUnavailableError):
                    self._rests_until = time.monotonic() + outcome.attempts * SERVER_SECONDS
                self._watch.lost(number, task, outcome.where, str(end.error))
                self._waiting[task.model.key].appendleft(number)
                return
            elif isinstance(end.error, DatabaseUnavailableError):
                raise end.error
            else:
                self._last_loss = end.error
                end = End(
                    error=MachineError(f"it was lost {outcome.attempts} times, at last so: {end.error}")
                )
        elif end.error is not None and not _is_of_the_task(end.error):
            raise end.error
        outcome = replace(
            outcome,
            found=end.found,
            error=end.error,
            seconds=time.monotonic() - self._first_began[number],
        )
        self.outcomes[number] = outcome
        self._watch.ended(number, task, outcome)

    def _require_devices(self) -> None:
        """
        Raises:
            SparsegenError: nothing runs, and no device for what is left has been there for long.
        """
        models = [m for m in self._engine.models if self._waiting[m.key]]
        if self._begun or not models or any(self._engine.capacity(m) for m in models):
            self._had_devices = time.monotonic()
        elif time.monotonic() - self._had_devices > self._engine.patience:
            names = ", ".join(m.name for m in models)
            raise self._last_loss or MachineError(
                f"no device is left for {names}; the same command goes on when there is one"
            )

    def kill(self) -> None:
        for begun in self._begun:
            begun.running.kill()


def _is_of_the_task(error: SparsegenError) -> bool:
    """True if other searches may still succeed."""
    return isinstance(error, MatrixError | NoVariantError | SuiteError)
