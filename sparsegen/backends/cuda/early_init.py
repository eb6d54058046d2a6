"""Starts the NVIDIA driver beside what a program imports first: it takes a fifth of a second, most of it waiting."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparsegen.backends.cuda.identity import Identity

LIBRARY = "libcuda.so.1"
EXIT_SECONDS = 10.0  # limit of an exit's wait for the driver; one that hangs must not keep a program

_begun: list[threading.Thread] = []


def begin(index: int | None = None) -> threading.Thread:
    """Let a thread initialise the driver; whoever does it after that waits for the rest or finds it done.

    Where there is no driver, or no such GPU, nothing happens: whoever needs one says so.

    Args:
        index: number of the GPU whose primary context the thread is to make too, which stays as long as the process;
            None for no context.
    """
    thread = threading.Thread(target=_begin, args=(index,), daemon=True, name="driver")
    thread.start()
    _begun.append(thread)
    atexit.register(thread.join, EXIT_SECONDS)  # the library must not be torn down around it
    return thread


@cache
def begin_once() -> threading.Thread:
    """`begin` by the first call of a process; later ones begin nothing."""
    identity_at_start()
    return begin()


def is_loaded() -> bool:
    """True if the driver's library is in this process, which may then have initialised it."""
    try:
        ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def is_starting() -> bool:
    """True while a thread of `begin` is running."""
    return any(thread.is_alive() for thread in _begun)


@cache
def identity_at_start() -> Identity | None:
    """Returns the identity that this process's driver uses; call it before the driver is loaded and reads its
    environment.

    The first call's answer stays: None if it came too late, or if `identity` has none.
    """
    from sparsegen.backends.cuda.identity import identity

    return None if is_loaded() else identity()


def _begin(index: int | None) -> None:
    try:
        driver = ctypes.CDLL(LIBRARY)  # ctypes lets other threads run meanwhile, PyCUDA does not
        if driver.cuInit(ctypes.c_uint(0)) or index is None:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if not driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)):
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    except (OSError, AttributeError):
        return
