"""The NVIDIA driver through ctypes, with the names that `runtime` uses of PyCUDA's driver module.

For machines where PyCUDA is not installed: it is built from source, which a job's bundle cannot ask of a borrowed
machine. Signatures and numbers are those of cuda.h (CUDA driver API reference).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

from sparsegen.errors import DeviceUnavailableError
from sparsegen.system.numpy_types import Array

OUT_OF_MEMORY, NOT_READY = 2, 600  # CUresult
NAME_BYTES, BUS_ID_BYTES = 256, 32


class Error(Exception):
    """The driver refused a call; the message has its own words."""


class MemoryError(Error):
    """The device has not so much memory left."""


class device_attribute(IntEnum):  # noqa: N801 - PyCUDA's name
    """The numbers of the driver's CUdevice_attribute that are read."""

    CLOCK_RATE = 13
    MULTIPROCESSOR_COUNT = 16
    MEMORY_CLOCK_RATE = 36
    GLOBAL_MEMORY_BUS_WIDTH = 37
    L2_CACHE_SIZE = 38
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (c_void_p,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (c_void_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuEventCreate": (c_void_p, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventElapsedTime": (c_void_p, c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
}


@cache
def _library() -> ctypes.CDLL:
    from sparsegen.backends.cuda.driver import libcuda

    try:
        library = libcuda()
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise DeviceUnavailableError(f"the NVIDIA driver cannot be used: {error}") from None
    return library


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        from sparsegen.backends.cuda.driver import error_text

        raise (MemoryError if status == OUT_OF_MEMORY else Error)(f"{name} failed: {error_text(status)}")


def init() -> None:
    """Initialise the driver.

    Raises:
        DeviceUnavailableError: there is none, or no device.
    """
    try:
        _call("cuInit", 0)
    except Error as error:
        raise DeviceUnavailableError(f"no CUDA device can be used: {error}") from None


class Device:
    """A device by its number on this machine."""

    def __init__(self, index: int) -> None:
        handle = c_int()
        _call("cuDeviceGet", byref(handle), index)
        self._handle = handle.value

    @staticmethod
    def count() -> int:
        found = c_int()
        _call("cuDeviceGetCount", byref(found))
        return found.value

    def name(self) -> str:
        text = ctypes.create_string_buffer(NAME_BYTES)
        _call("cuDeviceGetName", text, NAME_BYTES, self._handle)
        return text.value.decode(errors="replace")

    def get_attribute(self, attribute: int) -> int:
        found = c_int()
        _call("cuDeviceGetAttribute", byref(found), int(attribute), self._handle)
        return found.value

    def compute_capability(self) -> tuple[int, int]:
        kinds = device_attribute.COMPUTE_CAPABILITY_MAJOR, device_attribute.COMPUTE_CAPABILITY_MINOR
        return self.get_attribute(kinds[0]), self.get_attribute(kinds[1])

    def pci_bus_id(self) -> str:
        text = ctypes.create_string_buffer(BUS_ID_BYTES)
        _call("cuDeviceGetPCIBusId", text, BUS_ID_BYTES, self._handle)
        return text.value.decode(errors="replace")

    def retain_primary_context(self) -> Context:
        found = c_void_p()
        _call("cuDevicePrimaryCtxRetain", byref(found), self._handle)
        return Context(found, self._handle)


class Context:
    """A device's primary context; given back with the object."""

    def __init__(self, handle: c_void_p, device: int) -> None:
        self._handle, self._device = handle, device

    def push(self) -> None:
        _call("cuCtxPushCurrent_v2", self._handle)

    @staticmethod
    def pop() -> None:
        _call("cuCtxPopCurrent_v2", byref(c_void_p()))

    @staticmethod
    def synchronize() -> None:
        _call("cuCtxSynchronize")

    def __del__(self) -> None:
        _library().cuDevicePrimaryCtxRelease_v2(self._device)


class Allocation:
    """Device memory, freed with the object; as an integer its address."""

    def __init__(self, nbytes: int) -> None:
        address = c_uint64()
        _call("cuMemAlloc_v2", byref(address), nbytes)
        self._address = address.value

    def __int__(self) -> int:
        return self._address

    def __del__(self) -> None:
        if address := getattr(self, "_address", 0):
            _library().cuMemFree_v2(address)


mem_alloc = Allocation


def memcpy_htod(address: int, array: Array) -> None:
    """Copy a contiguous array to the device."""
    _call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)


def memcpy_dtoh(array: Array, address: int) -> None:
    """Copy from the device into a contiguous array."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise ValueError("an array to be filled must be contiguous and writeable")
    _call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)


def memset_d8(address: int, byte: int, count: int) -> None:
    """Set bytes."""
    _call("cuMemsetD8_v2", address, byte, count)


def memset_d8_async(address: int, byte: int, count: int, stream: int | None) -> None:
    """Queue setting bytes on a stream."""
    _call("cuMemsetD8Async", address, byte, count, stream)


class Event:
    """A moment in what the device does."""

    def __init__(self) -> None:
        self._handle = c_void_p()
        _call("cuEventCreate", byref(self._handle), 0)

    def record(self) -> None:
        _call("cuEventRecord", self._handle, None)

    def query(self) -> bool:
        """True if it has passed."""
        status: int = _library().cuEventQuery(self._handle)
        if status not in (0, NOT_READY):
            _call("cuEventQuery", self._handle)
        return status == 0

    def time_since(self, start: Event) -> float:
        """Milliseconds from another event, both of which have passed."""
        found = c_float()
        _call("cuEventElapsedTime", byref(found), start._handle, self._handle)
        return found.value

    def __del__(self) -> None:
        if self._handle:
            _library().cuEventDestroy_v2(self._handle)
