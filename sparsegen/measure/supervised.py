"""A child process that works on a device, supervised: in time, in turn with others, replaced when it is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.measure.device_turn import device_turn
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTimeoutError

log = logging.getLogger(__name__)


class DeviceLostError(SparsegenError):
    """A child left its device in an error that stays; the process is of no use any more."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A child's answer to a request when all that needs no device to itself is done; it goes on at `Go`."""


@dataclass(frozen=True, slots=True)
class Go:
    """The device is the child's alone; from here on the time limit counts."""


class Supervised:
    """One child process, started at once, which gets ready in the background and then answers requests.

    A child that dies, exceeds a time limit or loses its device is replaced by a fresh one, which gets ready again; the
    caller gets the error.

    Args:
        target: the child's function, as ``"module:function"``.
        arguments: its arguments, see `ChildProcess`.
        first: the first message; the answer to it says that the child is ready.
        start_seconds: time limit until it is.
        starts: number of attempts, if a child dies or hangs before it is ready.
        stop: an event that, once set, ends the wait: `receive` then raises `Interrupted`.
    """

    def __init__(
        self,
        target: str,
        first: object,
        *arguments: int,
        start_seconds: float,
        starts: int = 1,
        stop: threading.Event | None = None,
    ) -> None:
        self._target, self._arguments, self._first, self._stop = target, arguments, first, stop
        self._start_seconds, self._starts = start_seconds, starts
        self._start()

    def _start(self) -> None:
        self._answer: list[Any] = []  # answer to the first message, once it is there
        self._child = ChildProcess(self._target, *self._arguments, stop=self._stop)
        self._child.send_in_background(self._first)

    @property
    def pid(self) -> int:
        return self._child.pid

    def is_ready(self) -> bool:
        """True if `wait_until_ready` would return (or raise) at once."""
        return bool(self._answer) or self._child.has_answer()

    def wait_until_ready(self) -> Any:
        """The answer to the first message.

        Raises:
            ChildDiedError, ChildTimeoutError: no child gets ready.
            Interrupted: ``stop`` was set.
            SparsegenError: any error of the child.
        """
        for left in reversed(range(self._starts)):
            if self._answer:
                break
            try:
                self._answer.append(self._child.receive(self._start_seconds))
                log.debug("worker %d: %s", self.pid, self._answer[0])
            except (ChildDiedError, ChildTimeoutError) as error:
                if not left:
                    raise
                log.warning("%s; starting another", error)
                self.replace()
        return self._answer[0]

    def send(self, message: object) -> None:
        """Send the child a message.

        Raises:
            ChildDiedError: the child had ended.
        """
        try:
            self._child.send(message)
        except ChildDiedError:
            self.replace()
            raise

    def receive(self, seconds: float) -> Any:
        """The next answer.

        Raises:
            ChildDiedError, ChildTimeoutError, DeviceLostError: the child is replaced.
            Interrupted: ``stop`` was set.
            SparsegenError: any other error of the child.
        """
        try:
            return self._child.receive(seconds)
        except (ChildDiedError, ChildTimeoutError, DeviceLostError):
            self.replace()
            raise

    def ask_in_turn(
        self,
        request: object,
        *,
        device: Device,
        locks: Path,
        prepare_seconds: float,
        seconds: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """The answer to a request, for which the child has the device to itself once it says that it is `Waiting`.

        Args:
            locks: private folder of lock files, as `device_turn` takes it.
            prepare_seconds: limit until it waits for its turn (or answers without one).
            seconds: limit from its turn to the answer.
            meanwhile: called once the request is sent, while the child prepares.

        Raises:
            As `receive`.
        """
        self.send(request)
        if meanwhile is not None:
            meanwhile()
        answer = self.receive(prepare_seconds)
        if isinstance(answer, Waiting):
            with device_turn(device, locks, stop=self._stop):
                self.send(Go())
                answer = self.receive(seconds)
        return answer

    def replace(self) -> None:
        """End the child, and start another."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the child and all that it started; safe to call twice."""
        self._child.close()
