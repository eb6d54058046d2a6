"""Tests as root that files' modes are to bind, as they bind any user: without the capabilities that pass over them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

VERSION_3 = 0x20080522  # of capget(2)
DAC_OVERRIDE, DAC_READ_SEARCH = 1 << 1, 1 << 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def unprivileged() -> Iterator[None]:
    """Modes of files and folders bind the calling thread inside the block; nothing changes but for root."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(VERSION_3, 0), (_Sets * 2)()

    def call(name: str) -> None:
        if getattr(libc, name)(ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), name)

    call("capget")
    before = sets[0].effective
    sets[0].effective = before & ~(DAC_OVERRIDE | DAC_READ_SEARCH)
    call("capset")
    try:
        yield
    finally:
        sets[0].effective = before
        call("capset")
