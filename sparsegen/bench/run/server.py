"""Code of a baseline's process: it prepares, checks and times its implementations of one row after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, Explorer, Implementation, UnsupportedError
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.results.results import ImplementationTime
from sparsegen.bench.run.reference import bound_for
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.clock import Call, Clock, Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.ranking import fastest_first, rough_times
from sparsegen.measure.supervised import DeviceLostError
from sparsegen.operators import DType
from sparsegen.system.child import answer, requests
from sparsegen.verify.bounds import ErrorBound

WARMUP = 2
SLOW_SECONDS = 0.5  # seconds of a call from which on a round is one call without a warm-up


class WrongResultError(SparsegenError):
    """A baseline has no implementation with a right result."""


@dataclass(frozen=True, slots=True)
class Open:
    """The first message."""

    baseline: Baseline
    device: Device
    db: str | None


@dataclass(frozen=True, slots=True)
class Prepare:
    """Makes every implementation of this row ready, and drops earlier ones. The answer is their number; an `Explorer`
    answers with its configs, and binds none yet.
    """

    inputs: Inputs


@dataclass(frozen=True, slots=True)
class Rank:
    """The device is free: time every implementation shortly, and order them. Answered with their number."""

    l2: L2


@dataclass(frozen=True, slots=True)
class Measure:
    """The device is free: time the chosen implementation. Answered with a `Timing`."""

    samples: int
    seconds: float
    l2: L2


@dataclass(frozen=True, slots=True)
class Try:
    """The device is free: bind one of an `Explorer`'s configs, and run it for the `Judge`. Answered as `Check` is."""

    config: Config


@dataclass(frozen=True, slots=True)
class Keep:
    """Bind the config that stands for an `Explorer`."""

    config: Config
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """Run the fastest implementation. Answered with `Ran`: a `Judge` comes next."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of one implementation.

    Attributes:
        result: the file that holds it; None where the implementation knows its error itself.
        bound: bound that it must keep.
        error: the largest error over its bound, for such an implementation.
    """

    result: Path | None
    bound: ErrorBound
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Judge:
    """The largest error over its bound of what ran. Answered with `Chosen` where it is right, and that implementation
    stands; else with the `Ran` of the next one.
    """

    error: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """The implementation that stands for the baseline: its largest error over its bound, the number of faster ones that
    gave wrong results, of variants measured on the workload beforehand, and what all took if there are several.
    """

    detail: str
    variant: Config | None
    digest: str
    preparation_ms: float
    memory_bytes: int
    worst_error: float
    wrong: int
    tried: int | None
    implementations: tuple[ImplementationTime, ...]


def serve(connection: Connection) -> None:
    """Runs in the child."""
    opening: Open = connection.recv()
    servers: list[_Server] = []

    def begin() -> Mapping[str, str]:
        executor = backends.open_executor(opening.device)
        versions = opening.baseline.open(executor)
        servers.append(_Server(opening, executor))
        return versions

    if answer(connection, begin):
        for request in requests(connection):
            answer(connection, partial(servers[0].handle, request))


class _Server:
    def __init__(self, opening: Open, executor: Executor) -> None:
        self._baseline, self._db, self._executor = opening.baseline, opening.db, executor
        self._clock = Clock(executor)
        self._bench: Workbench | None = None
        self._implementations: list[Implementation] = []
        self._times: list[float] = []  # times of the implementations, if there are several
        self._wrong: list[str] = []  # reasons why the first implementations are out
        self._lead: Call | None = None
        self._is_slow = False

    def handle(self, request: object) -> Any:
        """
        Raises:
            DeviceLostError: the request failed, and so will the next.
            SparsegenError: any error of the baseline.
        """
        try:
            return self._answer(request)
        except Exception as error:
            self._require_device(error)
            raise

    def _require_device(self, after: Exception) -> None:
        try:
            self._executor.synchronize()
        except SparsegenError as lost:
            raise DeviceLostError(f"{after}; afterwards {lost}") from after

    def _answer(self, request: object) -> Any:
        if isinstance(request, Prepare):
            return self._prepare(request.inputs)
        if isinstance(request, Rank):
            return self._rank(request)
        if isinstance(request, Try):
            return self._try(request.config)
        if isinstance(request, Keep):
            return self._keep(request)
        if isinstance(request, Check):
            return self._check()
        if isinstance(request, Judge):
            return self._judge(request.error)
        assert isinstance(request, Measure)
        return self._time(request)

    def _prepare(self, inputs: Inputs) -> int | Sequence[Config]:
        self._implementations, self._times, self._bench = [], [], None  # the last row's memory goes first
        self._bench = Workbench(inputs, self._executor, self._db)
        if isinstance(self._baseline, Explorer):
            self._baseline.foresee(inputs, self._bench.device, self._db)
            return self._baseline.configs(inputs, self._bench.device, self._db)
        self._implementations = list(self._baseline.implementations(self._bench))
        if not self._implementations:
            raise UnsupportedError("it has no implementation to compute this")
        self._executor.synchronize()
        return len(self._implementations)

    def _rank(self, request: Rank) -> int:
        if len(self._implementations) > 1:
            calls = [one.part or one.run for one in self._implementations]
            of_parts = rough_times(calls, self._executor, self._clock, request.l2)
            times = [us * one.parts for us, one in zip(of_parts, self._implementations, strict=True)]
            order = fastest_first(times)
            self._implementations, self._times = (
                [self._implementations[i] for i in order],
                [times[i] for i in order],
            )
        return len(self._implementations)

    def _try(self, config: Config) -> Ran:
        assert isinstance(self._baseline, Explorer) and self._bench is not None
        self._implementations = []
        self._implementations = [self._baseline.implementation(self._bench, config)]
        return self._check()

    def _keep(self, request: Keep) -> int:
        assert isinstance(self._baseline, Explorer) and self._bench is not None
        self._implementations = []
        one = self._baseline.implementation(self._bench, request.config)
        self._implementations = [replace(one, detail=request.detail)]
        return 1

    def _check(self) -> Ran:
        self._wrong = []
        return self._run_next()

    def _run_next(self) -> Ran:
        """Run the fastest implementation that was not wrong."""
        assert self._bench is not None
        problem, one = self._bench.problem, self._implementations[len(self._wrong)]
        one.clear()
        # A first call may load or compile something; the second one tells.
        self._is_slow = self._seconds_of(one) > SLOW_SECONDS and self._seconds_of(one) > SLOW_SECONDS
        written = problem.result(self._bench.features.nnz).dtype
        assert isinstance(written, DType)
        bound = bound_for(one.ran or self._baseline.kind, self._baseline.arithmetic(problem), written)
        if one.own_error is not None:
            return Ran(None, bound, one.own_error())
        return Ran(self._bench.inputs.store_result(one.read()), bound)

    def _seconds_of(self, one: Implementation) -> float:
        """Runs it, and waits for it."""
        began = time.perf_counter()
        one.run()
        self._executor.synchronize()
        return time.perf_counter() - began

    def _judge(self, error: float) -> Chosen | Ran:
        one, wrong = self._implementations[len(self._wrong)], self._wrong
        if error <= 1:
            implementations = tuple(self._implementation_times(wrong))
            self._implementations = [one]
            self._lead = None if self._is_slow else self._clock.lead_for(one.run)
            facts = (
                one.detail,
                one.variant,
                one.digest,
                one.preparation_ms,
                one.memory_bytes,
            )
            return Chosen(*facts, error, len(wrong), one.tried, implementations)
        wrong.append(f"{one.detail}: {error:.3g} times its error bound")
        if len(wrong) < len(self._implementations):
            return self._run_next()
        raise WrongResultError("; ".join(wrong))

    def _implementation_times(self, wrong: Sequence[str]) -> Iterator[ImplementationTime]:
        """Yields the times of several implementations; those with a reason in ``wrong``, the first ones, were wrong."""
        for place, (one, us) in enumerate(zip(self._implementations, self._times, strict=False)):
            reason = wrong[place] if place < len(wrong) else ""
            yield ImplementationTime(one.detail, None if reason else round(us, 3), reason, one.variant)

    def _time(self, request: Measure) -> Timing:
        return self._clock.time(
            self._implementations[0].run,
            samples=1 if self._is_slow else request.samples,
            l2=request.l2,
            budget_s=request.seconds,
            warmup=0 if self._is_slow else WARMUP,
            lead=self._lead,
        )
