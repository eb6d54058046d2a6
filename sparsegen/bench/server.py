"""What runs in a contender's process: it prepares, checks and times its ways of one row after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.bench.contender import Contender, UnsupportedError, Way
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.reference import bound_for, kept_reference
from sparsegen.bench.workbench import Workbench
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.clock import Call, Clock, Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.ranking import ranked
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
    """Make every way of this row ready; what was ready before goes. Answered with their number."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Rank:
    """The device is free: time every way shortly, and order them. Answered with their number."""

    l2: L2


@dataclass(frozen=True, slots=True)
class Check:
    """Hold the ways against the reference, the fastest first, until one is right: that one stands."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The way that stands for the contender; ``wrong``: how many faster ones gave wrong results."""

    detail: str
    variant: Config | None
    preparation_ms: float
    memory_bytes: int
    worst_error: float
    wrong: int


@dataclass(frozen=True, slots=True)
class Measure:
    """The device is free: time the chosen way. Answered with a `Timing`."""

    samples: int
    seconds: float
    l2: L2


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
        if isinstance(request, Check):
            return self._check()
        assert isinstance(request, Measure)
        return self._time(request)

    def _prepare(self, parcel: Parcel) -> int:
        self._ways, self._bench = [], None  # the last row's memory goes first
        self._bench = Workbench(parcel, self._executor, self._db)
        self._ways = list(self._contender.ways(self._bench))
        if not self._ways:
            raise UnsupportedError("it has no way to compute this")
        self._executor.synchronize()
        return len(self._ways)

    def _rank(self, request: Rank) -> int:
        order = ranked([way.run for way in self._ways], self._executor, self._clock, request.l2)
        self._ways = [self._ways[i] for i in order]
        return len(self._ways)

    def _check(self) -> Chosen:
        assert self._bench is not None
        problem, reference = self._bench.problem, kept_reference(self._bench.parcel)
        bound = bound_for(self._contender.kind, self._contender.arithmetic(problem), problem.dtype)
        wrong: list[str] = []
        for way in self._ways:
            way.clear()
            way.run()
            worst = worst_error(reference, way.read(), bound)
            if worst <= 1:
                self._ways = [way]
                self._lead = self._clock.lead_for(way.run)
                return Chosen(
                    way.detail, way.variant, way.preparation_ms, way.memory_bytes, worst, len(wrong)
                )
            wrong.append(f"{way.detail}: {worst:.3g} times its error bound")
        raise WrongResultError("; ".join(wrong))

    def _time(self, request: Measure) -> Timing:
        return self._clock.time(
            self._ways[0].run,
            samples=request.samples,
            l2=request.l2,
            budget_s=request.seconds,
            warmup=WARMUP,
            lead=self._lead,
        )
