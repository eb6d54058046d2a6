"""What runs in a contender's process: it prepares, checks and times its ways of one row after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.bench.contender import Contender, Explorer, UnsupportedError, Way
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.reference import bound_for, kept_reference
from sparsegen.bench.results import WayTime
from sparsegen.bench.workbench import Workbench
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.clock import Call, Clock, Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.ranking import fastest_first, rough_times
from sparsegen.measure.supervised import DeviceLostError
from sparsegen.system.child import answer, requests
from sparsegen.verify.bounds import worst_error

WARMUP = 2


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
    """The device is free: bind, check and time one of an `Explorer`'s configs. Answered with its median in µs."""

    config: Config
    measure: Measure


@dataclass(frozen=True, slots=True)
class Keep:
    """Bind the config that stands for an `Explorer`."""

    config: Config
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """Hold the ways against the reference, the fastest first, until one is right: that one stands."""


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
        self._lead: Call | None = None

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
            return self._try(request)
        if isinstance(request, Keep):
            return self._keep(request)
        if isinstance(request, Check):
            return self._check()
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
            times = rough_times([w.run for w in self._ways], self._executor, self._clock, request.l2)
            order = fastest_first(times)
            self._ways, self._times = [self._ways[i] for i in order], [times[i] for i in order]
        return len(self._ways)

    def _try(self, request: Try) -> float:
        assert isinstance(self._contender, Explorer) and self._bench is not None
        self._ways = []
        self._ways = [self._contender.way(self._bench, request.config)]
        self._check()
        median = self._time(request.measure).median_us
        self._ways = []
        return median

    def _keep(self, request: Keep) -> int:
        assert isinstance(self._contender, Explorer) and self._bench is not None
        way = self._contender.way(self._bench, request.config)
        self._ways = [replace(way, detail=request.detail)]
        return 1

    def _check(self) -> Chosen:
        wrong: list[str] = []
        for way in self._ways:
            way.clear()
            way.run()
            worst = self._error_of(way)
            if worst <= 1:
                found = Chosen(
                    way.detail,
                    way.variant,
                    way.digest,
                    way.preparation_ms,
                    way.memory_bytes,
                    worst,
                    len(wrong),
                    way.tried,
                    tuple(self._way_times(wrong)),
                )
                self._ways = [way]
                self._lead = self._clock.lead_for(way.run)
                return found
            wrong.append(f"{way.detail}: {worst:.3g} times its error bound")
        raise WrongResultError("; ".join(wrong))

    def _error_of(self, way: Way) -> float:
        """After a run: the largest error over its bound."""
        assert self._bench is not None
        if way.own_error is not None:
            return way.own_error()
        problem, reference = self._bench.problem, kept_reference(self._bench.parcel)
        bound = bound_for(self._contender.kind, self._contender.arithmetic(problem), reference.dtype)
        return worst_error(reference, way.read(), bound)

    def _way_times(self, wrong: Sequence[str]) -> Iterator[WayTime]:
        """Of all ways where there are several; the first of them, so many, were wrong."""
        for place, (way, us) in enumerate(zip(self._ways, self._times, strict=False)):
            reason = wrong[place] if place < len(wrong) else ""
            yield WayTime(way.detail, None if reason else round(us, 3), reason, way.variant)

    def _time(self, request: Measure) -> Timing:
        return self._clock.time(
            self._ways[0].run,
            samples=request.samples,
            l2=request.l2,
            budget_s=request.seconds,
            warmup=WARMUP,
            lead=self._lead,
        )
