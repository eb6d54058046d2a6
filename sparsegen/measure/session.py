"""Supervised measuring: a worker process with time limits, replaced when it dies, hangs or loses a GPU."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.supervised import Supervised
from sparsegen.measure.worker import Measure, Measured, SetUp
from sparsegen.operators import Problem
from sparsegen.system.child import ChildDiedError, ChildTimeoutError
from sparsegen.tuning_db.records import Outcome

log = logging.getLogger(__name__)

START_SECONDS = 300.0  # to import, open the device, upload and compute the reference
PACK_SECONDS = 300.0
VARIANT_SECONDS = {"cuda": 10.0}  # from the first launch to the answer
EMULATED_VARIANT_SECONDS = 120.0
OPEN_EXECUTOR = "sparsegen.backends:open_executor"


@dataclass(frozen=True, slots=True)
class Attempt:
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
        self._device, self._locks = device, locks
        self._limit = variant_seconds or VARIANT_SECONDS.get(device.backend, EMULATED_VARIANT_SECONDS)
        self._child = Supervised(
            "sparsegen.measure.worker:serve",
            SetUp(matrix, problem, device, open_executor, seed),
            start_seconds=START_SECONDS,
            starts=2,
            stop=stop,
        )

    def is_ready(self) -> bool:
        """Whether `measure` would start at once."""
        return self._child.is_ready()

    def wait_until_ready(self) -> None:
        """Raises DeviceUnavailableError, or what else keeps the worker from starting."""
        self._child.wait_until_ready()

    @property
    def worker_pid(self) -> int:
        return self._child.pid

    def measure(self, request: Measure) -> Attempt:
        """Verify and time one variant.

        A worker that dies, or that finds its device lost before the launch, may have been killed by somebody
        else or left broken by an earlier variant: this one then gets a second try in a fresh worker.

        Raises:
            Interrupted: ``stop`` was set.
            SparsegenError: the worker does not start (again), or the family's own code raised.
        """
        attempt, is_certain = self._try(request)
        return attempt if is_certain else self._try(request)[0]

    def _try(self, request: Measure) -> tuple[Attempt, bool]:
        """What became of it, and whether the variant itself must be to blame for it."""
        self.wait_until_ready()
        try:
            answer = self._child.ask_in_turn(
                request,
                device=self._device,
                locks=self._locks,
                prepare_seconds=PACK_SECONDS,
                seconds=self._limit,
            )
        except ChildTimeoutError as slow:
            return Attempt(Outcome.TIMED_OUT, Measured(None, str(slow))), True
        except ChildDiedError as death:
            return Attempt(Outcome.CRASHED, Measured(None, str(death), crashed=True)), False
        assert isinstance(answer, Measured)
        if answer.sticky:
            self._child.replace()
        if answer.crashed:
            log.debug("a launch failed in the worker\n%s", answer.traceback)
            return Attempt(Outcome.CRASHED, answer), answer.launched or not answer.sticky
        return Attempt(Outcome.WRONG if answer.timing is None else Outcome.OK, answer), True

    def close(self) -> None:
        """End the worker and all that it started."""
        self._child.close()
