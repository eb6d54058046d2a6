"""Times other libraries' routines (cuBLAS, cuSPARSE) in a process of their own, while the search pauses.

The libraries take seconds to load and the reference to compute: that happens beside the first compiles.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines import Result
from sparsegen.measure.session import device_turn
from sparsegen.measure.summary import summarize
from sparsegen.operators import Problem
from sparsegen.system.child import ChildProcess, answer, requests
from sparsegen.tuning_db.records import Baseline, DeviceRates, Workload

START_SECONDS = 120.0
MEASURE_SECONDS = 60.0
RATES_SECONDS = 60.0
BASELINE_SESSION = "sparsegen.measure.baselines:Session"


@dataclass(frozen=True)
class Prepare:
    """``session`` is a class like `sparsegen.measure.baselines.Session`, as ``"module:class"``."""

    session: str
    matrix: CsrMatrix
    problem: Problem
    device: Device


@dataclass(frozen=True, slots=True)
class Ready:
    """Imported and uploaded."""


@dataclass(frozen=True, slots=True)
class Go:
    """The device is free: measure now."""


@dataclass(frozen=True, slots=True)
class MeasureRates:
    """The device is free: measure what it does. Answered with `Rates`, or None where not all can be measured."""


def serve(connection: Connection) -> None:
    """Runs in the child."""
    prepare: Prepare = connection.recv()
    sessions = []

    def get_ready() -> Ready:
        module, _, name = prepare.session.partition(":")
        session_type = getattr(importlib.import_module(module), name)
        sessions.append(session_type(prepare.matrix, prepare.problem, prepare.device))
        return Ready()

    if answer(connection, get_ready):
        for request in requests(connection):
            session = sessions[0]
            answer(connection, session.rates if isinstance(request, MeasureRates) else session.measure)


class Rivals:
    """The baselines of one workload; the child imports and uploads in the background.

    Args:
        locks: folder of the devices' lock files.
        session: what the child runs, as in `Prepare`.
    """

    def __init__(
        self,
        workload: Workload,
        matrix: CsrMatrix,
        device: Device,
        *,
        locks: Path,
        session: str = BASELINE_SESSION,
        stop: Event | None = None,
    ) -> None:
        self._workload, self._device, self._locks = workload, device, locks
        self._child = ChildProcess("sparsegen.measure.rivals:serve", stop=stop)
        self._child.send_in_background(Prepare(session, matrix, workload.problem, device))

    def is_ready(self) -> bool:
        return self._child.has_answer()

    def measure(self) -> list[Baseline]:
        """Wait until the child is ready, take the device, and time them all.

        Raises:
            SparsegenError: the library failed, or took too long.
        """
        self._child.receive(START_SECONDS)
        with device_turn(self._device, self._locks):
            self._child.send(Go())
            results: list[Result] = self._child.receive(MEASURE_SECONDS)
        return [
            Baseline(
                self._workload,
                self._device,
                r.contender,
                f"{r.version} ({r.detail})" if r.detail else r.version,
                summarize([r.timing]),
            )
            for r in results
        ]

    def rates(self) -> DeviceRates | None:
        """After `measure`: take the device again, and measure what it does; None where not all can be measured.

        Raises:
            SparsegenError: there is not enough memory, or it took too long.
        """
        with device_turn(self._device, self._locks):
            self._child.send(MeasureRates())
            rates: Rates | None = self._child.receive(RATES_SECONDS)
        return None if rates is None else DeviceRates(self._device, rates)

    def close(self) -> None:
        self._child.close()
