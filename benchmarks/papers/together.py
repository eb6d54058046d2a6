"""Points that time nothing, several at a time: processes of their own on all GPUs, whose results the caller writes.

A process takes one point after the other, the next of those with which it shares what it made. One that is killed costs
the point that it had; another takes its place. What they decide by times that others disturb is kept by none.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from benchmarks.papers.budget import Budget
from benchmarks.papers.study import BROKEN_OFF, CPU, Point, Setting, device_of, why_failed
from sparsegen.settings import Settings

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # one each: processes are many
GPUS = "CUDA_VISIBLE_DEVICES"
MOST_DEATHS = 3  # of processes without a result between, after which none is begun any more

Done = Callable[[Point, dict[str, Any], float], None]  # with the seconds that it took
Failed = Callable[[Point, str], None]


@dataclass(eq=False)
class Worker:
    """A process, the point that it measures, and the group of the last one."""

    gpu: int
    process: Any
    pipe: connection.Connection
    point: Point | None = None
    group: str = ""


@dataclass
class Together:
    """Processes that measure points of one study.

    Attributes:
        module: where the study is.
        begun, done, failed, left: called here, in this process, when a point begins, ends, or is left half done.
    """

    module: str
    setting: Setting
    count: int
    budget: Budget
    begun: Callable[[Point], None]
    done: Done
    failed: Failed
    left: Callable[[Point], None]
    taken: float = 0.0  # seconds of all points that are done
    expected: float = 0.0
    deaths: int = 0
    workers: list[Worker] = field(default_factory=list)

    def measure(self, points: list[Point]) -> list[Point]:
        """Measure points, those that come first first; those for which there was no time are returned.

        Those that are not done when the budget's whole time is up, or when this process is told to end, are as though
        they had not begun.
        """
        waiting = list(points)
        with tempfile.TemporaryDirectory() as folder, _private(Path(folder)), _told_to_end():
            setting = replace(self.setting, shared=Path(folder))
            try:
                for number in range(min(self.count, len(waiting))):
                    self._begin(number % setting.gpus, setting)
                for worker in [*self.workers]:
                    self._give(worker, waiting)
                while any(worker.point for worker in self.workers):
                    heard = self._heard()
                    if not heard:  # time is up
                        break
                    for worker in heard:
                        if self._result(worker):
                            self._give(worker, waiting)
                        elif waiting and self.deaths < MOST_DEATHS:
                            self._give(self._begin(worker.gpu, setting), waiting)
            finally:
                for worker in self.workers:
                    worker.process.kill()
                    worker.process.join()
                    if worker.point:
                        self.left(worker.point)
        return waiting + [worker.point for worker in self.workers if worker.point]

    def _begin(self, gpu: int, setting: Setting) -> Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(self.module, setting, theirs), daemon=True)
        gpus = {GPUS: _visible(gpu)} if setting.is_timed else {}
        with _environment(dict.fromkeys(THREADS, "1") | gpus):
            process.start()
        theirs.close()
        worker = Worker(gpu, process, ours)
        self.workers.append(worker)
        return worker

    def _give(self, worker: Worker, waiting: list[Point]) -> None:
        """Give a process the next point, if there is one that should end in time."""
        slower = max(1.0, self.taken / self.expected) if self.expected else 1.0
        fitting = [p for p in waiting if self.budget.allows(p.expected * slower, first=not self.expected)]
        worker.point = next((p for p in fitting if p.group == worker.group), fitting[0] if fitting else None)
        if worker.point is None:
            return
        waiting.remove(worker.point)
        worker.group = worker.point.group
        self.begun(worker.point)
        with contextlib.suppress(OSError):  # it died: read of its pipe
            worker.pipe.send(worker.point.name)

    def _heard(self) -> list[Worker]:
        """The processes that have told something; none if time is up before."""
        by_pipe = {worker.pipe: worker for worker in self.workers if worker.point}
        within = max(0.0, self.budget.whole - time.monotonic())
        ready = connection.wait(list(by_pipe), None if math.isinf(within) else within)
        return [by_pipe[one] for one in ready]  # type: ignore[index]

    def _result(self, worker: Worker) -> bool:
        """Take a result, and pass it on; False if the process is at its end."""
        point, worker.point = worker.point, None
        assert point is not None
        try:
            measured, taken, why = worker.pipe.recv()
        except (EOFError, OSError):
            measured, taken, why = None, 0.0, BROKEN_OFF
        if measured is None:
            self.deaths += 1
            self.workers.remove(worker)
            worker.pipe.close()
            self.failed(point, why)
            return False
        self.deaths = 0
        self.taken += taken
        self.expected += point.expected
        self.done(point, measured, taken)
        return True


def work(module: str, setting: Setting, pipe: connection.Connection) -> None:
    """Measure points of a study by name until the pipe ends; a point that fails ends the process, too."""
    with contextlib.suppress(ImportError):
        import torch

        torch.set_num_threads(1)
    name = CPU if setting.device.key == CPU else setting.device.backend
    setting = replace(setting, device=device_of(name))  # the first of those that this process sees
    points = {point.name: point for point in importlib.import_module(module).STUDY.points(setting)}
    while True:
        try:
            point = points[pipe.recv()]
        except EOFError:
            return
        began = time.monotonic()
        try:
            measured = point.measure()
        except Exception as error:  # whatever it is: the device may be in any state
            traceback.print_exc()
            pipe.send((None, 0.0, why_failed(error)))
            return
        pipe.send((measured, time.monotonic() - began, ""))


def _visible(gpu: int) -> str:
    """The name of a GPU of those that this process sees."""
    seen = os.environ.get(GPUS)
    return seen.split(",")[gpu] if seen else str(gpu)


@contextlib.contextmanager
def _private(folder: Path) -> Iterator[None]:
    """A copy of the tuning database for processes that are begun meanwhile."""
    held = Path(Settings.from_environment().db).expanduser()  # a server's is no file, and stays unread
    if held.is_file():
        shutil.copy(held, folder / "tuned.db")
    with _environment({"SPARSEGEN_DB": str(folder / "tuned.db")}):
        yield


@contextlib.contextmanager
def _told_to_end() -> Iterator[None]:
    """A process that is told to end does so with what it began put in order."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(words: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
