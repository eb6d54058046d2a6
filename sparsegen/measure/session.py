"""Supervised measuring: a worker process with time limits, replaced when it dies, hangs or loses a GPU."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.worker import Go, Measure, Measured, Prepare, Ready, Waiting
from sparsegen.operators import Problem
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTimeoutError
from sparsegen.tuning_db.records import Outcome

log = logging.getLogger(__name__)

START_SECONDS = 300.0  # to import, open the device, upload and compute the reference
PACK_SECONDS = 300.0
VARIANT_SECONDS = {"cuda": 10.0}  # from the first launch to the answer
EMULATED_VARIANT_SECONDS = 120.0
OPEN_EXECUTOR = "sparsegen.backends:open_executor"


@contextmanager
def device_turn(device: Device, folder: Path) -> Iterator[None]:
    """Hold the device among all processes that measure on it: they would disturb each other's times."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = hashlib.sha256(f"{device.key} {device.index}".encode()).hexdigest()[:16]
    with (folder / f"device-{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a variant, with the worker's facts where it lived to tell them."""

    outcome: Outcome
    measured: Measured


class Session:
    """Measures variants of one problem in a worker process; one variant at a time, from one thread.

    The worker starts at once and gets ready in the background.

    Args:
        locks: folder of the devices' lock files.
        variant_seconds: time limit of one variant's launches; by default 10 s, or 120 s on the emulator.
        stop: set by somebody else to give up waiting: `measure` then raises `Interrupted`.
    """

    def __init__(
        self,
        matrix: CsrMatrix,
        problem: Problem,
        device: Device,
        *,
        locks: Path,
        seed: int = 0,
        open_executor: str = OPEN_EXECUTOR,
        variant_seconds: float | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self._prepare = Prepare(matrix, problem, device, open_executor, seed)
        self._locks = locks
        self._limit = variant_seconds or VARIANT_SECONDS.get(device.backend, EMULATED_VARIANT_SECONDS)
        self._stop = stop
        self._ready = False
        self._start()

    def _start(self) -> None:
        self._ready = False
        self._child = ChildProcess("sparsegen.measure.worker:serve", stop=self._stop)
        self._child.send_in_background(self._prepare)

    def is_ready(self) -> bool:
        """Whether `measure` would start at once."""
        return self._ready or self._child.has_answer()

    def wait_until_ready(self) -> None:
        """Raises DeviceUnavailableError, or what else keeps the worker from starting."""
        if self._ready:
            return
        try:
            answer = self._child.receive(START_SECONDS)
        except ChildDiedError as death:
            log.warning("%s; starting another", death)
            self._replace()
            answer = self._child.receive(START_SECONDS)
        assert isinstance(answer, Ready)
        log.debug("worker %d ready after %.2f s", self._child.pid, answer.seconds)
        self._ready = True

    @property
    def worker_pid(self) -> int:
        return self._child.pid

    def measure(self, request: Measure) -> Verdict:
        """Verify and time one variant.

        A worker that dies, or that finds its device lost before the launch, may have been killed by somebody
        else or left broken by an earlier variant: this one then gets a second try in a fresh worker.

        Raises:
            Interrupted: ``stop`` was set.
            SparsegenError: the worker does not start (again), or the family's own code raised.
        """
        verdict, is_certain = self._try(request)
        return verdict if is_certain else self._try(request)[0]

    def _try(self, request: Measure) -> tuple[Verdict, bool]:
        """The verdict, and whether the variant itself must be to blame for it."""
        self.wait_until_ready()
        try:
            self._child.send(request)
            answer = self._child.receive(PACK_SECONDS)
            if isinstance(answer, Waiting):
                with device_turn(self._prepare.device, self._locks):
                    self._child.send(Go())
                    answer = self._child.receive(self._limit)
        except ChildTimeoutError as slow:
            self._replace()
            return Verdict(Outcome.TIMED_OUT, Measured(None, str(slow))), True
        except ChildDiedError as death:
            self._replace()
            return Verdict(Outcome.CRASHED, Measured(None, str(death), crashed=True)), False
        assert isinstance(answer, Measured)
        if answer.sticky:
            self._replace()
        if answer.crashed:
            log.debug("a launch failed in the worker\n%s", answer.traceback)
            return Verdict(Outcome.CRASHED, answer), answer.launched or not answer.sticky
        return Verdict(Outcome.WRONG if answer.timing is None else Outcome.OK, answer), True

    def _replace(self) -> None:
        self._child.close()
        self._start()

    def close(self) -> None:
        """End the worker and all that it started."""
        self._child.close()
