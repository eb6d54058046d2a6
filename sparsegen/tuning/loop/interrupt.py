"""Ctrl-C as a request: the first one sets an event, a second one raises `KeyboardInterrupt` as ever.

Whoever waits sees the event and raises `Interrupted`. Where that is not taken for an answer, it becomes the
`KeyboardInterrupt` that it stands for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sparsegen.system.child import Interrupted


@contextmanager
def interruptible(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` at the first Ctrl-C.

    Does nothing outside the main thread, or if another handler of SIGINT is installed.

    Raises:
        KeyboardInterrupt: a second Ctrl-C, or what is within raised `Interrupted`.
    """
    try:
        with _handled(stop):
            yield
    except Interrupted:
        raise KeyboardInterrupt from None


@contextmanager
def _handled(stop: threading.Event) -> Iterator[None]:
    default = signal.default_int_handler
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) != default:
        yield
        return

    def request(signum: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, default)

    signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, default)
