"""The process that runs searches on one device of this host, one after another, and says how they go.

It sends what it has to say from several threads: the search's progress, lines for the log, and that it is alive.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.system.child import Failed, requests
from sparsegen.tuning.engines.engine import Assignment, End, Found, SetUp
from sparsegen.tuning.engines.search import LOSSES, search
from sparsegen.tuning.report import Status
from sparsegen.tuning_db.records import Measurement

BEAT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Serve:
    """The first message: what all searches have in common, the device, and which lines of the log are wanted."""

    set_up: SetUp
    device: Device
    log_level: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the search under way soon, with the best so far."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Sent all the while."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A line for the log."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A search ended with an error; ``was_lost`` as in `End`."""

    failed: Failed
    was_lost: bool


def serve(connection: Connection) -> None:
    """Answer each `Assignment` with what goes on, and at last a `Found` or a `Failure`."""
    first: Serve = connection.recv()
    mouth = _Mouth(connection)
    logger = logging.getLogger("sparsegen")
    logger.setLevel(first.log_level)
    logger.addHandler(Forwarder(mouth.say))
    assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
    stop = threading.Event()

    def listen() -> None:
        for message in requests(connection):
            if isinstance(message, Stop):
                stop.set()
            else:
                assignments.put(message)
        assignments.put(None)

    threading.Thread(target=listen, daemon=True, name="listen").start()
    threading.Thread(target=mouth.beat, daemon=True, name="beat").start()
    while (assignment := assignments.get()) is not None:
        mouth.say(_answer(first, assignment, mouth, stop))


def _answer(first: Serve, assignment: Assignment, mouth: _Mouth, stop: threading.Event) -> Found | Failure:
    def progress(status: Status, measurement: Measurement | None = None) -> None:
        mouth.say(status)

    try:
        return search(first.set_up, assignment, first.device, progress, stop)
    except Exception as error:
        return Failure(Failed.of(error), isinstance(error, LOSSES))


def end_of(failure: Failure) -> End:
    """The end that a failure is, with the error as the process raised it."""
    error: SparsegenError = failure.failed.error
    error.child_traceback = failure.failed.traceback
    return End(error=error, was_lost=failure.was_lost)


class _Mouth:
    """Sends from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._gone = threading.Event()

    def say(self, message: object) -> None:
        try:
            with self._lock:
                self._connection.send(message)
        except OSError:  # the parent has gone, and we go with it
            self._gone.set()

    def beat(self) -> None:
        while not self._gone.wait(BEAT_SECONDS):
            self.say(Alive())


class Forwarder(logging.Handler):
    """Hands lines of the log to whoever has a place for them."""

    def __init__(self, say: Callable[[Logged], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on one line."""
        self._say(Logged(record.name, record.levelno, record.getMessage()))
