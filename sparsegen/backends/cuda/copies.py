"""Copies beside kernels: pinned memory, a stream of its own, and events that order both, through the C interface.

Both drivers, PyCUDA's and `direct`, have contexts that this works in; see CUDA's programming guide, "Asynchronous
Concurrent Execution".
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sparsegen.backends.cuda.driver import beside_captures, check, error_text, libcuda
from sparsegen.backends.executor import Buffer, Moment, require_fitting
from sparsegen.errors import DeviceMemoryError
from sparsegen.system.numpy_types import Array

PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: the default stream is not waited for
WITHOUT_TIMES = 2  # CU_EVENT_DISABLE_TIMING
NOT_READY = 600  # CUresult
DEFAULT_STREAM = None


def free_bytes() -> int:
    """Returns the bytes of free memory on the current context's device."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    status = libcuda().cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    check(status, "cannot read how much memory is free")
    return int(free.value)


class CudaPinnedMemory:
    """Page-locked host memory, for every GPU of the process."""

    def __init__(self, context: ctypes.c_void_p, nbytes: int) -> None:
        self._context, self._memory = context, ctypes.c_void_p()
        size = max(1, nbytes)
        with beside_captures():
            status = libcuda().cuMemHostAlloc(ctypes.byref(self._memory), size, PORTABLE)
        if status:
            raise DeviceMemoryError(f"cannot pin {nbytes} bytes of host memory: {error_text(status)}")
        assert self._memory.value is not None
        self._bytes = (ctypes.c_uint8 * size).from_address(self._memory.value)

    @property
    def array(self) -> Array:
        """See `PinnedMemory.array`. It keeps the bytes' description alive, not the bytes: keep this object."""
        found: Array = np.ctypeslib.as_array(self._bytes)
        return found

    def __del__(self) -> None:
        if getattr(self, "_memory", None):
            with _within(self._context):
                libcuda().cuMemFreeHost(self._memory)


class CudaMoment:
    """An event behind some copies."""

    def __init__(self, context: ctypes.c_void_p) -> None:
        self._context, self.handle = context, ctypes.c_void_p()
        check(
            libcuda().cuEventCreate(ctypes.byref(self.handle), WITHOUT_TIMES),
            "cannot make an event",
        )

    def has_passed(self) -> bool:
        """See `Moment.has_passed`."""
        status = libcuda().cuEventQuery(self.handle)
        if status != NOT_READY:
            check(status, "a copy failed")
        return bool(status != NOT_READY)

    def wait(self) -> None:
        """See `Moment.wait`."""
        check(libcuda().cuEventSynchronize(self.handle), "a copy failed")

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            with _within(self._context):
                libcuda().cuEventDestroy_v2(self.handle)


class CudaCopyStream:
    """A stream that runs beside the default one."""

    def __init__(self, context: ctypes.c_void_p) -> None:
        self._context, self._stream = context, ctypes.c_void_p()
        check(libcuda().cuStreamCreate(ctypes.byref(self._stream), NON_BLOCKING), "cannot make a stream")

    def send(self, array: Array, target: Buffer) -> None:
        """See `CopyStream.send`."""
        require_fitting(array, target)
        if array.nbytes:
            status = libcuda().cuMemcpyHtoDAsync_v2(
                target.address, array.ctypes.data, array.nbytes, self._stream
            )
            check(status, "cannot copy to the device")

    def fetch(self, source: Buffer, array: Array) -> None:
        """See `CopyStream.fetch`."""
        require_fitting(array, source)
        if array.nbytes:
            status = libcuda().cuMemcpyDtoHAsync_v2(
                array.ctypes.data, source.address, array.nbytes, self._stream
            )
            check(status, "cannot copy from the device")

    def moment(self) -> CudaMoment:
        """See `CopyStream.moment`."""
        return self._recorded(self._stream)

    def hold_kernels(self, moment: Moment) -> None:
        """See `CopyStream.hold_kernels`."""
        assert isinstance(moment, CudaMoment)
        check(libcuda().cuStreamWaitEvent(DEFAULT_STREAM, moment.handle, 0), "cannot wait for copies")

    def wait_for_kernels(self) -> None:
        """See `CopyStream.wait_for_kernels`."""
        behind = self._recorded(DEFAULT_STREAM)
        check(libcuda().cuStreamWaitEvent(self._stream, behind.handle, 0), "cannot wait for kernels")

    def _recorded(self, stream: ctypes.c_void_p | None) -> CudaMoment:
        made = CudaMoment(self._context)
        check(libcuda().cuEventRecord(made.handle, stream), "cannot record an event")
        return made

    def __del__(self) -> None:
        if getattr(self, "_stream", None):
            with _within(self._context):
                libcuda().cuStreamDestroy_v2(self._stream)


@contextmanager
def _within(context: ctypes.c_void_p) -> Iterator[None]:
    """Makes a context current while objects in it are released: the thread that drops the last reference may be in
    none.
    """
    library = libcuda()
    library.cuCtxPushCurrent_v2(context)
    try:
        with beside_captures():
            yield
    finally:
        library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
