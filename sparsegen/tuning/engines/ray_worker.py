"""Code that runs on the nodes of a Ray cluster: the search of one task, its messages, and the board that gathers
them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from sparsegen import __version__, backends
from sparsegen.kernels.base import Device
from sparsegen.system.child import Failed
from sparsegen.tuning.engines.engine import Assignment, Found, SetUp
from sparsegen.tuning.engines.search import LOSSES, search
from sparsegen.tuning.engines.worker import Failure, Forwarder
from sparsegen.tuning.report import Status
from sparsegen.tuning_db.records import Measurement

EMULATOR = "sparsegen:emulator"  # the resource of nodes whose GPUs are the emulator's
TELL_SECONDS = 0.5  # between what a search says, which also says that it is alive
FIRST_SECONDS = 60.0  # time to reach the board for the first time
LEASE_SECONDS = 8.0  # time that a search goes on without the board: then it may be assigned to another device


@dataclass(frozen=True, slots=True)
class Node:
    """A node's description of itself: one of its devices of a label, and its version of sparsegen."""

    device: Device
    version: str


@dataclass(frozen=True, slots=True)
class Began:
    """The first thing that a search says: where it runs."""

    where: str


class Board:
    """An actor beside the driver: searches hang up what they have to say, and read whether they are to stop."""

    def __init__(self) -> None:
        self._said: list[tuple[int, Any]] = []
        self._is_over = False
        self._given_up: set[int] = set()

    def tell(self, number: int, messages: list[Any]) -> bool:
        """Hang up messages; whether the search is to stop. Without any it says that the search is alive."""
        self._said += [(number, message) for message in messages or [None]]
        return self._is_over or number in self._given_up

    def take(self) -> list[tuple[int, Any]]:
        """All that hangs there, which is then gone."""
        said, self._said = self._said, []
        return said

    def give_up(self, number: int) -> None:
        """A search is to end, since another device will go on with it."""
        self._given_up.add(number)

    def stop(self) -> None:
        """All searches are to end soon."""
        self._is_over = True


def describe(label: str) -> Node:
    """A task that needs a little of a GPU: what it is."""
    return Node(_device(label), __version__)


def run_search(
    set_up: SetUp, assignment: Assignment, label: str, board: object, number: int, log_level: int
) -> Found | Failure:
    """A task that has a GPU to itself: one search on it."""
    reporter = _Reporter(board, number)
    try:
        device = _device(label)
        reporter.say(Began(f"{socket.gethostname()} {backends.device_name(device)}"))

        def progress(status: Status, measurement: Measurement | None = None) -> None:
            reporter.say(status)

        with reporter.telling(log_level):
            return search(set_up, assignment, device, progress, reporter.stop)
    except Exception as error:
        return Failure(Failed.of(error), isinstance(error, LOSSES))


def _device(label: str) -> Device:
    """The one that Ray gave this task: the only GPU that it shows CUDA, or an emulator of that number.

    Raises:
        DeviceUnavailableError: PyCUDA or the driver is missing on this node.
    """
    if label == EMULATOR:
        return backends.emulator_device(int(ray.get_gpu_ids()[0]))
    return backends.find_device("cuda:0")


class _Reporter:
    """Tells the board now and then what a search says.

    Attributes:
        stop: set when the board says that the search is to end.
    """

    def __init__(self, board: Any, number: int) -> None:
        self._board, self._number = board, number
        self._lock = threading.Lock()
        self._unsaid: list[Any] = []
        self._lease = time.monotonic() + FIRST_SECONDS
        self.stop = threading.Event()

    def say(self, message: object) -> None:
        with self._lock:
            self._unsaid.append(message)

    @contextmanager
    def telling(self, log_level: int) -> Iterator[None]:
        """Forwards messages and log records inside the block to the board, the last of them before the block ends."""
        logger, forwarder = logging.getLogger("sparsegen"), Forwarder(self.say)
        logger.setLevel(log_level)
        logger.addHandler(forwarder)
        done = threading.Event()

        def tell_on() -> None:
            while not done.wait(TELL_SECONDS):
                self._tell()

        self._tell()
        teller = threading.Thread(target=tell_on, daemon=True, name="tell")
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()
            logger.removeHandler(forwarder)
            self._tell()

    def _tell(self) -> None:
        """Sends the unsent messages to the board. If it is unreachable for longer than the lease, its node or this one
        is gone, and the search ends: what was measured is recorded.
        """
        with self._lock:
            messages, self._unsaid = self._unsaid, []
        try:
            is_over = ray.get(self._board.tell.remote(self._number, messages), timeout=LEASE_SECONDS)
        except ray.exceptions.RayError:
            is_over = time.monotonic() > self._lease
        else:
            self._lease = time.monotonic() + LEASE_SECONDS
        if is_over:
            self.stop.set()
