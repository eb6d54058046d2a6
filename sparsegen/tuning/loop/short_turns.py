"""Threads of a search that give way to each other soon.

The thread that measures asks for the interpreter's lock many times for one variant, after every answer and every file.
Where others compute, such as those that render sources or import a package, it waits for each of them up to the
interpreter's switch interval, 5 ms as Python comes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 0.0005

_lock = threading.Lock()
_before: list[float] = []  # the interval that holds elsewhere, for each of those who are within


@contextmanager
def short_turns() -> Iterator[None]:
    """Have the interpreter's threads switch every half millisecond; the last to leave has it as it was before."""
    with _lock:
        _before.append(_before[0] if _before else sys.getswitchinterval())
        sys.setswitchinterval(min(SECONDS, _before[0]))
    try:
        yield
    finally:
        with _lock:
            usual = _before.pop()
            if not _before:
                sys.setswitchinterval(usual)
