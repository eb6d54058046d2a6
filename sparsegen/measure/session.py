"""Supervised measuring: a worker process with time limits, replaced when it dies, hangs or loses a GPU."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sparsegen.errors import MachineError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.supervised import Supervised
from sparsegen.measure.worker import Measure, Measured, SetUp, target_of
from sparsegen.operators import Problem
from sparsegen.system.child import ChildDiedError, ChildTimeoutError
from sparsegen.tuning_db.records import Outcome

log = logging.getLogger(__name__)

START_SECONDS = 300.0  # limit to import, open the device, upload and compute the reference
PACK_SECONDS = 300.0
VARIANT_SECONDS = {"cuda": 10.0}  # limit from the first launch to the answer
EMULATED_VARIANT_SECONDS = 120.0
OPEN_EXECUTOR = "sparsegen.backends:open_executor"


class Blame(Enum):
    """Cause of a failure, as far as one attempt tells."""

    VARIANT = "the variant's"
    UNCLEAR = "the variant's, or an earlier one's"
    MACHINE = "the machine's, or an earlier variant's"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Outcome of a variant, with the worker's measurements if it survived."""

    outcome: Outcome
    measured: Measured


class Session:
    """Measures variants of one problem in a worker process; one variant at a time, from one thread.

    The worker starts at once and gets ready in the background.

    Args:
        locks: folder of the devices' lock files.
        variant_seconds: time limit of one variant's launches; by default 10 s, or 120 s on the emulator.
        stop: an event that, once set, ends the wait: `measure` then raises `Interrupted`.
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
        target, arguments = target_of(device)
        self._child = Supervised(
            target,
            SetUp(matrix, problem, device, open_executor, seed),
            *arguments,
            start_seconds=START_SECONDS,
            starts=2,
            stop=stop,
        )

    def is_ready(self) -> bool:
        """True if `measure` would start at once."""
        return self._child.is_ready()

    def wait_until_ready(self) -> None:
        """Raises DeviceUnavailableError, or what else keeps the worker from starting."""
        self._child.wait_until_ready()

    @property
    def worker_pid(self) -> int:
        return self._child.pid

    def measure(self, request: Measure, meanwhile: Callable[[], None] | None = None) -> Attempt:
        """Verify and time one variant.

        A worker that dies, or that finds its device lost before the launch, may have been killed from outside or left
        broken by an earlier variant: this one then gets a second try in a fresh worker.

        Args:
            meanwhile: called once, while the worker packs the matrix and loads the variant.

        Raises:
            Interrupted: ``stop`` was set.
            MachineError: the second worker was killed from outside, too, or lost the device before the launch.
            CacheEntryError: the binary is gone, or was changed since it was compiled.
            SparsegenError: the worker does not start (again), or the family's own code raised.
        """
        attempt, blame = self._try(request, meanwhile)
        if blame is not Blame.VARIANT:
            attempt, blame = self._try(request)
        if blame is Blame.MACHINE:
            raise MachineError(
                f"measuring failed twice before a variant was to blame: {attempt.measured.reason}; nothing of it is "
                "recorded, and the same command goes on once the machine is mended"
            )
        self.wait_until_ready()  # a device that is lost for good is not this variant's fault either
        return attempt

    def _try(self, request: Measure, meanwhile: Callable[[], None] | None = None) -> tuple[Attempt, Blame]:
        """Returns the outcome of one attempt, and its cause."""
        self.wait_until_ready()
        try:
            answer = self._child.ask_in_turn(
                request,
                device=self._device,
                locks=self._locks,
                prepare_seconds=PACK_SECONDS,
                seconds=self._limit,
                meanwhile=meanwhile,
            )
        except ChildTimeoutError as slow:
            return Attempt(Outcome.TIMED_OUT, Measured(None, str(slow))), Blame.VARIANT
        except ChildDiedError as death:
            blame = Blame.MACHINE if death.was_killed else Blame.UNCLEAR
            return Attempt(Outcome.CRASHED, Measured(None, str(death), crashed=True)), blame
        assert isinstance(answer, Measured)
        if answer.sticky:
            self._child.replace()
        if answer.crashed:
            log.debug("a launch failed in the worker\n%s", answer.traceback)
            blame = Blame.VARIANT if answer.launched or not answer.sticky else Blame.MACHINE
            return Attempt(Outcome.CRASHED, answer), blame
        return Attempt(Outcome.WRONG if answer.timing is None else Outcome.OK, answer), Blame.VARIANT

    def close(self) -> None:
        """End the worker and all that it started."""
        self._child.close()
