"""Time limits of tests that hold on a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sparsegen.errors import DeviceMemoryError

T = TypeVar("T")

LONG = 300.0  # seconds for what ends by an event, and is waited for only if something is broken


def patience(seconds: float) -> float:
    """A limit that a test waits for: as many times longer as there are processes for each core."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return round(seconds * max(1.0, waiting), 1)


def wait_until(condition: Callable[[], bool], seconds: float = LONG) -> None:
    """Returns when a condition holds; fails after ``seconds`` seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def when_there_is_memory(work: Callable[[], T], seconds: float = LONG / 2) -> T:
    """Returns the result of ``work``; repeats it for up to ``seconds`` while other processes hold the device's
    memory.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DeviceMemoryError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(1)


def is_running(process: int) -> bool:
    """True if a process has not ended; one that ended and that was not waited for has closed all it had.

    Its first thread may have ended while others, which hold what is open, have not.
    """
    try:
        has_ended = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not has_ended or sum(1 for _ in Path(f"/proc/{process}/task").iterdir()) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False
