"""Copies beside kernels for the emulator: a thread that makes them in order, as late as the host lets it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from sparsegen.backends.executor import Buffer, Moment, require_fitting
from sparsegen.system.numpy_types import Array


class HostPinnedMemory:
    """Host memory in the place of pinned memory; nothing has to be pinned."""

    def __init__(self, nbytes: int) -> None:
        self._bytes: Array = np.empty(max(1, nbytes), dtype=np.uint8)

    @property
    def array(self) -> Array:
        return self._bytes


class HostMoment:
    """The end of the copies before it."""

    def __init__(self, ended: Future[None]) -> None:
        self._ended = ended

    def has_passed(self) -> bool:
        return self._ended.done()

    def wait(self) -> None:
        self._ended.result()


class HostCopyStream:
    """One thread that copies; launches end before they return, so that it never waits for kernels."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")

    def send(self, array: Array, target: Buffer) -> None:
        require_fitting(array, target)
        self._queue(lambda: ctypes.memmove(target.address, array.ctypes.data, array.nbytes))

    def fetch(self, source: Buffer, array: Array) -> None:
        require_fitting(array, source)
        self._queue(lambda: ctypes.memmove(array.ctypes.data, source.address, array.nbytes))

    def moment(self) -> HostMoment:
        return HostMoment(self._queue(lambda: None))

    def hold_kernels(self, moment: Moment) -> None:
        """A launch is the calling thread's, which waits here."""
        moment.wait()

    def wait_for_kernels(self) -> None:
        """Waits for the kernels that were launched."""

    def _queue(self, copy: Callable[[], object]) -> Future[None]:
        def made() -> None:
            copy()

        return self._thread.submit(made)
