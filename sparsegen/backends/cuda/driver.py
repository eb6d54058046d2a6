"""The CUDA driver's C interface, for what PyCUDA has no public access to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from uuid import UUID

from sparsegen.errors import LaunchError

UUID_BYTES = 16
CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_COPYING = {  # functions that `copies` calls
    "cuCtxPushCurrent_v2": [ctypes.c_void_p],
    "cuCtxPopCurrent_v2": [ctypes.c_void_p],
    "cuMemGetInfo_v2": [ctypes.c_void_p, ctypes.c_void_p],
    "cuMemHostAlloc": [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint],
    "cuMemFreeHost": [ctypes.c_void_p],
    "cuMemcpyHtoDAsync_v2": [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p],
    "cuMemcpyDtoHAsync_v2": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p],
    "cuStreamCreate": [ctypes.c_void_p, ctypes.c_uint],
    "cuStreamDestroy_v2": [ctypes.c_void_p],
    "cuStreamWaitEvent": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint],
    "cuEventCreate": [ctypes.c_void_p, ctypes.c_uint],
    "cuEventDestroy_v2": [ctypes.c_void_p],
    "cuEventQuery": [ctypes.c_void_p],
    "cuEventRecord": [ctypes.c_void_p, ctypes.c_void_p],
    "cuEventSynchronize": [ctypes.c_void_p],
}


@cache
def libcuda() -> ctypes.CDLL:
    """The driver's C interface with the signatures of the calls made through it; each returns a CUresult."""
    library = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.c_void_p
    library.cuOccupancyMaxActiveClusters.argtypes = [pointer] * 3
    library.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
    library.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    library.cuModuleUnload.argtypes = [pointer]
    library.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    library.cuCtxGetCurrent.argtypes = [pointer]
    library.cuCtxSetCurrent.argtypes = [pointer]
    library.cuThreadExchangeStreamCaptureMode.argtypes = [ctypes.POINTER(ctypes.c_int)]
    library.cuDeviceGet.argtypes = [ctypes.POINTER(ctypes.c_int), ctypes.c_int]
    library.cuDeviceGetUuid_v2.argtypes = [pointer, ctypes.c_int]
    for name, arguments in _COPYING.items():
        getattr(library, name).argtypes = arguments
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    return library


def check(status: int, message: str) -> None:
    """Raises LaunchError with the message and the driver's own words where a call failed."""
    if status:
        raise LaunchError(f"{message}: {error_text(status)}")


@contextmanager
def beside_captures() -> Iterator[None]:
    """Keeps captures of all threads going while this thread takes or frees memory.

    The driver would end them, as it cannot tell that the memory is none of theirs (CUDA driver API,
    ``cuThreadExchangeStreamCaptureMode``). Memory may be freed at any time: a plan may make room for another one.
    """
    mode = ctypes.c_int(CAPTURE_RELAXED)
    libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def device_uuid(index: int) -> str:
    """Returns the name of a GPU, or of a part of one by MIG, for every process of its machine: ``GPU-`` and a UUID.

    Raises:
        LaunchError: there is no such device.
    """
    device, found = ctypes.c_int(), (ctypes.c_char * UUID_BYTES)()
    check(libcuda().cuDeviceGet(ctypes.byref(device), index), f"there is no GPU {index}")
    check(libcuda().cuDeviceGetUuid_v2(found, device), f"GPU {index} tells no UUID")
    return f"GPU-{UUID(bytes=found.raw)}"


def error_text(status: int) -> str:
    """Returns the driver's description of a CUresult."""
    text = ctypes.c_char_p()
    libcuda().cuGetErrorString(status, ctypes.byref(text))
    return (text.value or b"unknown error").decode()
