"""Starts the NVIDIA driver beside what a program imports first: it takes a fifth of a second, most of it waiting."""

from __future__ import annotations

import ctypes
import threading
from functools import cache


def begin(index: int | None = None) -> threading.Thread:
    """Let a thread initialise the driver; whoever does it after that waits for the rest or finds it done.

    Where there is no driver, or no such GPU, nothing happens: whoever needs one says so.

    Args:
        index: of the GPU whose primary context the thread is to make too, which stays as long as the process; None for
            no context.
    """
    thread = threading.Thread(target=_begin, args=(index,), daemon=True, name="driver")
    thread.start()
    return thread


@cache
def begin_once() -> threading.Thread:
    """`begin` by the first call of a process; later ones begin nothing."""
    return begin()


def _begin(index: int | None) -> None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")  # ctypes lets other threads run meanwhile, PyCUDA does not
        if driver.cuInit(ctypes.c_uint(0)) or index is None:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    except (OSError, AttributeError):
        return
