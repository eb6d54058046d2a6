"""What runs in a contender's process: it prepares, checks and times its ways of one row after the other."""

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
from sparsegen.bench.contender.contender import Contender, Explorer, UnsupportedError, Way
from sparsegen.bench.contender.parcel import Parcel
from sparsegen.bench.contender.workbench import Workbench
from sparsegen.bench.results.results import WayTime
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
SLOW_SECONDS = 0.5  # of a call, from which on a round is one call and nothing before it


class WrongResultError(SparsegenError):
    """Not one way of a contender gives a right result."""


@dataclass(frozen=True, slots=True)
class Open:
    """The first message."""

    contender: Contender
    device: Device
    db: str | None


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make every way of this row ready; what was ready before goes. Answered with their number, by an `Explorer` with
    its configs, of which none is bound yet.
    """

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Rank:
    """The device is free: time every way shortly, and order them. Answered with their number."""

    l2: L2


@dataclass(frozen=True, slots=True)
class Measure:
    """The device is free: time the chosen way. Answered with a `Timing`."""

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
    """Run the fastest way. Answered with `Ran`: a `Judge` comes next."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a way gave.

    Attributes:
        result: the file that holds it; None where the way knows its error itself.
        bound: that it must keep.
        error: of such a way, the largest one over its bound.
    """

    result: Path | None
    bound: ErrorBound
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Judge:
    """The largest error over its bound of what ran. Answered with `Chosen` where it is right, and that way stands; else
    with the `Ran` of the next way.
    """

    error: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """The way that stands for the contender, its largest error over its bound, how many faster ones gave wrong results,
    how many variants were measured on the workload beforehand, and what all took if there are several.
    """

    detail: str
    variant: Config | None
    digest: str
    preparation_ms: float
    memory_bytes: int
    worst_error: float
    wrong: int
    tried: int | None
    ways: tuple[WayTime, ...]


def serve(connection: Connection) -> None:
    """Runs in the child."""
    opening: Open = connection.recv()
    servers: list[_Server] = []

    def begin() -> Mapping[str, str]:
        executor = backends.open_executor(opening.device)
        versions = opening.contender.open(executor)
        servers.append(_Server(opening, executor))
        return versions

    if answer(connection, begin):
        for request in requests(connection):
            answer(connection, partial(servers[0].handle, request))


class _Server:
    def __init__(self, opening: Open, executor: Executor) -> None:
        self._contender, self._db, self._executor = opening.contender, opening.db, executor
        self._clock = Clock(executor)
        self._bench: Workbench | None = None
        self._ways: list[Way] = []
        self._times: list[float] = []  # of several ways
        self._wrong: list[str] = []  # of the first ways, why they are out
        self._lead: Call | None = None
        self._is_slow = False

    def handle(self, request: Any) -> Any:
        """
        Raises:
            DeviceLostError: the request failed, and so will the next.
            SparsegenError: what the contender raised.
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

    def _answer(self, request: Any) -> Any:
        if isinstance(request, Prepare):
            return self._prepare(request.parcel)
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

    def _prepare(self, parcel: Parcel) -> int | Sequence[Config]:
        self._ways, self._times, self._bench = [], [], None  # the last row's memory goes first
        self._bench = Workbench(parcel, self._executor, self._db)
        if isinstance(self._contender, Explorer):
            self._contender.foresee(parcel, self._bench.device, self._db)
            return self._contender.configs(parcel, self._bench.device, self._db)
        self._ways = list(self._contender.ways(self._bench))
        if not self._ways:
            raise UnsupportedError("it has no way to compute this")
        self._executor.synchronize()
        return len(self._ways)

    def _rank(self, request: Rank) -> int:
        if len(self._ways) > 1:
            calls = [way.part or way.run for way in self._ways]
            of_parts = rough_times(calls, self._executor, self._clock, request.l2)
            times = [us * way.parts for us, way in zip(of_parts, self._ways, strict=True)]
            order = fastest_first(times)
            self._ways, self._times = [self._ways[i] for i in order], [times[i] for i in order]
        return len(self._ways)

    def _try(self, config: Config) -> Ran:
        assert isinstance(self._contender, Explorer) and self._bench is not None
        self._ways = []
        self._ways = [self._contender.way(self._bench, config)]
        return self._check()

    def _keep(self, request: Keep) -> int:
        assert isinstance(self._contender, Explorer) and self._bench is not None
        self._ways = []
        way = self._contender.way(self._bench, request.config)
        self._ways = [replace(way, detail=request.detail)]
        return 1

    def _check(self) -> Ran:
        self._wrong = []
        return self._run_next()

    def _run_next(self) -> Ran:
        """Run the fastest way that was not wrong."""
        assert self._bench is not None
        problem, way = self._bench.problem, self._ways[len(self._wrong)]
        way.clear()
        # A first call may load or compile something; the second one tells.
        self._is_slow = self._seconds_of(way) > SLOW_SECONDS and self._seconds_of(way) > SLOW_SECONDS
        written = problem.result(self._bench.features.nnz).dtype
        assert isinstance(written, DType)
        bound = bound_for(self._contender.kind, self._contender.arithmetic(problem), written)
        if way.own_error is not None:
            return Ran(None, bound, way.own_error())
        return Ran(self._bench.parcel.store_result(way.read()), bound)

    def _seconds_of(self, way: Way) -> float:
        """Runs it, and waits for it."""
        began = time.perf_counter()
        way.run()
        self._executor.synchronize()
        return time.perf_counter() - began

    def _judge(self, error: float) -> Chosen | Ran:
        way, wrong = self._ways[len(self._wrong)], self._wrong
        if error <= 1:
            ways = tuple(self._way_times(wrong))
            self._ways = [way]
            self._lead = None if self._is_slow else self._clock.lead_for(way.run)
            facts = way.detail, way.variant, way.digest, way.preparation_ms, way.memory_bytes
            return Chosen(*facts, error, len(wrong), way.tried, ways)
        wrong.append(f"{way.detail}: {error:.3g} times its error bound")
        if len(wrong) < len(self._ways):
            return self._run_next()
        raise WrongResultError("; ".join(wrong))

    def _way_times(self, wrong: Sequence[str]) -> Iterator[WayTime]:
        """Of all ways where there are several; the first of them, so many, were wrong."""
        for place, (way, us) in enumerate(zip(self._ways, self._times, strict=False)):
            reason = wrong[place] if place < len(wrong) else ""
            yield WayTime(way.detail, None if reason else round(us, 3), reason, way.variant)

    def _time(self, request: Measure) -> Timing:
        return self._clock.time(
            self._ways[0].run,
            samples=1 if self._is_slow else request.samples,
            l2=request.l2,
            budget_s=request.seconds,
            warmup=0 if self._is_slow else WARMUP,
            lead=self._lead,
        )
