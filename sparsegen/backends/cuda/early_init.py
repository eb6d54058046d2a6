"""Starts the NVIDIA driver beside what a program imports first: it takes a tenth of a second, most of it waiting."""

from __future__ import annotations

import ctypes
import threading
from functools import cache


def begin() -> threading.Thread:
    """Let a thread initialise the driver; whoever does it after that waits for the rest or finds it done.

    Where there is no driver nothing happens: whoever needs one says so.
    """
    thread = threading.Thread(target=_init, daemon=True, name="driver")
    thread.start()
    return thread


@cache
def begin_once() -> threading.Thread:
    """`begin` by the first call of a process; later ones begin nothing."""
    return begin()


def _init() -> None:
    try:
        init = ctypes.CDLL("libcuda.so.1").cuInit  # ctypes lets other threads run meanwhile, PyCUDA does not
    except (OSError, AttributeError):
        return
    init(ctypes.c_uint(0))
