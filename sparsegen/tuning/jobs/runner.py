"""Runs a job where its device is: the search's own loop, over the candidates that the bundle lists."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from enum import StrEnum

from sparsegen import backends
from sparsegen.dispatch.untried import left_to_try
from sparsegen.errors import BundleError
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.baseline_session import BaselineSession
from sparsegen.measure.baselines import unavailable
from sparsegen.measure.session import Session
from sparsegen.plan.variants import RenderedVariant
from sparsegen.settings import Settings
from sparsegen.tuning.jobs.bundle import Bundle
from sparsegen.tuning.jobs.job import Task
from sparsegen.tuning.jobs.results import ResultFile
from sparsegen.tuning.loop.claims import Claims
from sparsegen.tuning.loop.early_search import EarlySearch
from sparsegen.tuning.loop.finalists import is_finished
from sparsegen.tuning.loop.ledger import Ledger, Recorder
from sparsegen.tuning.loop.limits import Limits
from sparsegen.tuning.loop.pipeline import CompileAhead
from sparsegen.tuning.loop.run import Run
from sparsegen.tuning.report import Budget, Progress
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.records import Measurement, Outcome

Watch = Callable[[Task, int], AbstractContextManager[Progress]]


class TaskState(StrEnum):
    """Outcome of a task."""

    MEASURED = "measured"
    PARTLY = "measured in part"
    KNOWN = "known from before"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """A task and what became of it.

    Attributes:
        tried: candidates whose outcome is known now.
        left_out: candidates that are not valid on this device.
    """

    task: Task
    state: TaskState
    tried: int
    left_out: int


class Listed:
    """Proposes candidates in the order of a list; a `sparsegen.tuning.loop.early_search.Proposals`."""

    def __init__(self, candidates: Sequence[Config], known: Iterable[Config]) -> None:
        self.space = Space(
            tuple({family_of(c).name: family_of(c) for c in candidates}.values()), list(candidates)
        )
        unasked = set(candidates) - set(known)
        self._waiting = [c for c in candidates if c in unasked]

    def ask(self) -> Config | None:
        return self._waiting.pop(0) if self._waiting else None

    def prefer(self, candidates: Iterable[Config]) -> None:
        """Does nothing: the list's order is final."""

    def tell(self, m: Measurement) -> None:
        """Does nothing: a time changes no order."""

    def hear(self, m: Measurement) -> None:
        """Removes a candidate from the list that an equal search has tried."""
        if m.variant.config in self._waiting:
            self._waiting.remove(m.variant.config)


def require_fits(bundle: Bundle, device: Device) -> None:
    """Raises BundleError where the bundle is for other devices."""
    if not bundle.job.fits(device):
        major, minor = bundle.job.target.compute_capability
        there = ".".join(map(str, device.compute_capability))
        raise BundleError(
            f"{bundle.path} is for {bundle.job.target.backend} devices of compute capability {major}.{minor}, and "
            f"{device.name} is a {device.backend} device of {there}: export the job again with --for"
        )


def run_job(
    bundle: Bundle,
    results: ResultFile,
    device: Device,
    *,
    seconds: float,
    watch: Watch,
    stop: threading.Event,
) -> list[TaskOutcome]:
    """Measure what the result does not hold yet, each task within its share of the time that is left.

    Args:
        seconds: time for all tasks; each one that has begun measures at least its first candidates.
        watch: told of each task before it begins; the progress that its block gives is the task's.
        stop: an event that, once set, ends the job.

    Raises:
        BundleError: the bundle is damaged, or for other devices.
        MachineError: the machine failed; the same call goes on from what the result holds.
    """
    require_fits(bundle, device)
    tasks = bundle.job.tasks
    ends = time.monotonic() + seconds
    outcomes = []
    for number, task in enumerate(tasks):
        valid = _valid(task, device)
        left_out = len(task.candidates) - len(valid)
        state = TaskState.KNOWN
        if not _is_done(task, valid, results, device):
            left = ends - time.monotonic()
            if left <= 0 or stop.is_set():
                state = TaskState.NOT_REACHED
            else:
                with watch(task, number) as progress:
                    share = left / (len(tasks) - number)
                    _run_task(bundle, number, valid, results, device, share, progress, stop)
                state = TaskState.MEASURED if _is_done(task, valid, results, device) else TaskState.PARTLY
        tried = {m.variant.config for m in results.measurements(task.workload, device)}
        outcomes.append(TaskOutcome(task, state, len(tried), left_out))
    return outcomes


def _valid(task: Task, device: Device) -> list[Config]:
    workload = task.workload
    configs = [candidate.config for candidate in task.candidates]
    return [c for c in configs if family_of(c).suits(workload.problem, workload.features, c, device)]


def _is_done(task: Task, valid: list[Config], results: ResultFile, device: Device) -> bool:
    """True if every candidate was tried, and the best were timed in turn."""
    known = results.measurements(task.workload, device)
    has_finals = is_finished(known) or not any(m.outcome is Outcome.OK for m in known)
    return {m.variant.config for m in known} >= set(valid) and has_finals


def _run_task(
    bundle: Bundle,
    number: int,
    valid: list[Config],
    results: ResultFile,
    device: Device,
    seconds: float,
    progress: Progress,
    stop: threading.Event,
) -> None:
    began = time.monotonic()
    task = bundle.job.tasks[number]
    workload, matrix = task.workload, bundle.matrix(number)
    sources = {candidate.config: candidate.source for candidate in task.candidates}
    toolchain = backends.toolchain(device)

    def render(config: Config) -> RenderedVariant:
        source = bundle.source(sources[config])
        return RenderedVariant.given(config, workload.problem, source, toolchain)

    locks = Settings.from_environment().cache / "locks"
    with ExitStack() as resources:

        def kept(thing: Session | CompileAhead | BaselineSession | Claims) -> None:
            resources.enter_context(closing(thing))

        session = Session(matrix, workload.problem, device, locks=locks, stop=stop)
        kept(session)
        ahead = CompileAhead(toolchain, workload.problem, render=render)
        kept(ahead)
        written: Future[Recorder] = Future()
        written.set_result(results)
        ledger = Ledger(workload, device, results, written)
        baselines = None
        if not ledger.baselines and unavailable(device, workload.problem) is None:
            baselines = BaselineSession(workload, matrix, device, locks=locks, stop=stop)
            kept(baselines)
        ledger.expect(Listed(valid, ()).space, ahead.rendered)
        listed = Listed(valid, ledger.resume())
        search = EarlySearch([], lambda: listed)
        search.complete()
        limits = Limits.of(Budget(seconds=seconds), began)
        named = f"{bundle.digest} {number} {results.path}".encode("utf-8", "surrogateescape")
        name = hashlib.sha256(named).hexdigest()[:24]
        claims = Claims(locks / f"job-{name}")
        kept(claims)
        run = Run(
            session, baselines, search, ahead, ledger, limits, progress, stop, claims,
            suggest=lambda: (),
            left_to_try=lambda measured, on: left_to_try(workload, on, measured, set(valid).__contains__),
        )  # fmt: skip
        run.go()
