"""What runs in a contender's process: it prepares, checks and times its ways of one row after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor, Timing
from sparsegen.bench.contender import Contender, UnsupportedError, Way
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.reference import bound_for, kept_reference
from sparsegen.bench.results import L2
from sparsegen.bench.workbench import Workbench
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.device_work import Reader, Spinner
from sparsegen.system.child import answer, requests
from sparsegen.verify.bounds import worst_error

WARMUP = 2
RANK_SAMPLES = 7  # of each way, to find the one that stands for the contender
RANK_SECONDS = 0.03  # at the most for each way's samples; the host knows well enough what takes longer
HOPELESS = 5.0  # times the time of the fastest way so far: slower ones are called twice and no more
HOST_SECONDS = 1e-3  # more than a call's way through the host ever takes
LEAD_MARGIN_US = 15.0
LEAD_LIMIT_US = 3000.0


class WrongResultError(SparsegenError):
    """Not one way of a contender gives a right result."""


class DeviceLostError(SparsegenError):
    """A contender left its device in an error that stays; its process is of no use any more."""


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
        self._spinner = Spinner(executor) if executor.device.backend == "cuda" else None
        self._reader: Reader | None = None
        self._bench: Workbench | None = None
        self._ways: list[Way] = []
        self._lead: Any = None

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
        return self._time(self._ways[0], request.samples, request.seconds, request.l2)

    def _prepare(self, parcel: Parcel) -> int:
        self._ways, self._bench = [], None  # the last row's memory goes first
        self._bench = Workbench(parcel, self._executor, self._db)
        self._ways = list(self._contender.ways(self._bench))
        if not self._ways:
            raise UnsupportedError("it has no way to compute this")
        self._executor.synchronize()
        return len(self._ways)

    def _rank(self, request: Rank) -> int:
        if len(self._ways) > 1:
            times: list[float] = []
            for way in self._ways:
                times.append(self._rank_time(way, min(times, default=math.inf), request.l2))
            self._ways = [self._ways[i] for i in np.argsort(times, kind="stable")]
        return len(self._ways)

    def _rank_time(self, way: Way, fastest: float, l2: L2) -> float:
        """Microseconds of a way; of one that is slow, or out of the question, as the host sees them.

        Some of cuSPARSE's ways take seconds where others take milliseconds.
        """
        for _ in range(2):  # the first loads what it needs
            began = time.perf_counter()
            way.run()
            self._executor.synchronize()
            seconds = time.perf_counter() - began
            if seconds < RANK_SECONDS and seconds - HOST_SECONDS < HOPELESS * fastest * 1e-6:
                return float(np.median(self._time(way, RANK_SAMPLES, RANK_SECONDS, l2).samples_us))
        return seconds * 1e6

    def _check(self) -> Chosen:
        assert self._bench is not None
        task, reference = self._bench.task, kept_reference(self._bench.parcel)
        bound = bound_for(self._contender.kind, self._contender.arithmetic(task), task.dtype)
        wrong: list[str] = []
        for way in self._ways:
            way.clear()
            way.run()
            worst = worst_error(reference, way.read(), bound)
            if worst <= 1:
                self._ways = [way]
                self._lead = self._lead_of(way)
                return Chosen(
                    way.detail, way.variant, way.preparation_ms, way.memory_bytes, worst, len(wrong)
                )
            wrong.append(f"{way.detail}: {worst:.3g} times its error bound")
        raise WrongResultError("; ".join(wrong))

    def _time(self, way: Way, samples: int, seconds: float, l2: L2) -> Timing:
        spin = self._lead if len(self._ways) == 1 else self._lead_of(way)
        return self._executor.measure(
            way.run,
            samples=samples,
            warmup=WARMUP,
            cold=l2 is not L2.WARM,
            budget_s=seconds,
            lead=self._reading_before(spin) if l2 is L2.CLEAN else spin,
        )

    def _reading_before(self, spin: Any) -> Any:
        if spin is None:
            return None
        if self._reader is None:
            self._reader = Reader(self._executor)
        read = self._reader

        def lead() -> None:
            read()
            spin()

        return lead

    def _lead_of(self, way: Way) -> Any:
        """Keeps the device busy for longer than the host takes to queue the call; None where nothing is queued."""
        if self._spinner is None:
            return None
        host_us = []
        for _ in range(4):
            self._executor.synchronize()
            began = time.perf_counter()
            way.run()
            host_us.append((time.perf_counter() - began) * 1e6)
        self._executor.synchronize()
        return self._spinner.lead(min(1.5 * float(np.median(host_us)) + LEAD_MARGIN_US, LEAD_LIMIT_US))
