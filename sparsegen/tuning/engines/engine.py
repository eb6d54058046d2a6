"""Interface of an engine: it knows devices, begins searches on them, and passes on their messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.tuning.report import Budget, SamplerName, Status, TuneResult

OPEN_BACKEND = "sparsegen.tuning.engines.search:own_backend"


@dataclass(frozen=True, slots=True)
class Request:
    """Description of a search, independent of its device: the arguments of `sparsegen.tune` but matrix, device and
    database.

    Attributes:
        even_if_finished: search even if an earlier search of the same workload was finished.
        again: measure again what the database holds.
        deterministic: only variants that give equal bits on every call.
        sampler: chooses the next variant.
    """

    problem: Problem
    budget: Budget
    families: tuple[str, ...] | None = None
    baselines: bool = True
    even_if_finished: bool = False
    again: bool = False
    seed: int = 0
    deterministic: bool = False
    sampler: SamplerName = SamplerName.CANDIDATES
    allow_overflow: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One search, to be run on any device of one model.

    Attributes:
        name: its name for people.
        model: a device of the model; times of two models are never mixed.
        matrix: reads or makes the matrix, when a device is free.
    """

    name: str
    model: Device
    request: Request
    matrix: Callable[[], CsrMatrix]


@dataclass(frozen=True, slots=True)
class SetUp:
    """Settings that all searches of a run have in common.

    Attributes:
        place: the database: a path, or a URL with its password.
        open_backend: a function like `sparsegen.tuning.engines.search.own_backend`, as ``"module:function"``.
    """

    place: str
    open_backend: str = OPEN_BACKEND


@dataclass(frozen=True, slots=True)
class Assignment:
    """A search as it is sent to the device that it was dealt to.

    Attributes:
        searches: number of searches side by side on the host, which share its cores for compiling; None if only the
            host knows.
    """

    request: Request
    matrix: CsrMatrix
    searches: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search.

    Attributes:
        result: None if it was finished before, or interrupted before anything was measured.
        known: variants that are known of a search that was finished before.
        was_interrupted: it was asked to end; the same search goes on from there.
    """

    result: TuneResult | None = None
    known: int = 0
    was_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The end of a search on a device.

    Attributes:
        found: None where an error ended it.
        was_lost: the device, its host or the search's process failed, not the search: another attempt may succeed.
    """

    found: Found | None = None
    error: SparsegenError | None = None
    was_lost: bool = False


class Running(Protocol):
    """A search that was begun.

    Attributes:
        where: the device, as people call it; empty while that is not decided.
    """

    @property
    def where(self) -> str: ...

    def news(self) -> Sequence[Status | End]:
        """Returns its messages since the last call; nothing follows an `End`. Never waits."""

    def stop(self) -> None:
        """Ask it to end soon with the best so far; everything measured is recorded already."""

    def kill(self) -> None:
        """End it now; safe to call twice, and after its end."""


class Engine(Protocol):
    """Devices, wherever they are.

    Attributes:
        models: one device of each model, in their order.
        patience: seconds to wait for a device when there is none left.
    """

    @property
    def models(self) -> Sequence[Device]: ...

    @property
    def patience(self) -> float: ...

    def capacity(self, model: Device) -> int:
        """Returns how many searches can run at once on devices of a model, as far as is known now."""

    def begin(self, model: Device, assignment: Assignment) -> Running:
        """Begin a search on a device of the model; only while fewer run than `capacity` says."""

    def close(self) -> None:
        """End all that it started; safe to call twice."""
