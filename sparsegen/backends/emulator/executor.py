"""Runs compiled variants in this process, on host memory."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegen.backends.emulator import device as emulator_device
from sparsegen.backends.emulator.copies import HostCopyStream, HostPinnedMemory
from sparsegen.backends.emulator.tensor_maps import MAP_ALIGNMENT, encoded
from sparsegen.backends.executor import Address, Buffer, CompiledKernel, Event, LoadedKernel
from sparsegen.errors import KernelFault, LaunchError
from sparsegen.kernels.base import Device
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.system.numpy_types import Array

LAUNCH_DONE, LAUNCH_REFUSED, LAUNCH_FAULTED = 0, 1, 2  # return codes of entry.h
ERROR_BYTES = 1024
ALIGNMENT = 256  # alignment of device memory from cuMemAlloc
INT32 = np.iinfo(np.int32)


class HostBuffer:
    """Exactly ``nbytes`` bytes of host memory, aligned as device memory is."""

    def __init__(self, nbytes: int) -> None:
        backing = np.empty(nbytes + ALIGNMENT, dtype=np.uint8)
        offset = -backing.ctypes.data % ALIGNMENT
        self.bytes: Array = backing[offset : offset + nbytes]
        self._address = int(backing.ctypes.data) + offset  # NumPy tells another one for an empty slice

    @property
    def address(self) -> int:
        return self._address

    @property
    def nbytes(self) -> int:
        return int(self.bytes.nbytes)


class HostEvent:
    """A moment of the wall clock; never waits, since launches return when they have ended."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def record(self) -> None:
        self._seconds = time.perf_counter()

    def has_passed(self) -> bool:
        return False

    def us_since(self, start: Event) -> float:
        assert isinstance(start, HostEvent)
        return (self._seconds - start._seconds) * 1e6


@dataclass(frozen=True, slots=True)
class EmulatorKernel:
    """A variant's C function, in a shared object that stays loaded until the process ends."""

    entry: str
    function: Callable[..., int]


class EmulatorExecutor:
    """The emulator's `sparsegen.backends.executor.Executor`. Launches return when the kernel has ended.

    A wild address in a kernel ends this process, and an endless loop hangs it: run what is not trusted in a
    worker process, or through `sparsegen.backends.emulator.sanitized`.

    Args:
        threads: OS threads for a grid's blocks; default one for each CPU.
        device: one of the devices that the CPU passes for; default the first.
    """

    def __init__(self, threads: int | None = None, device: Device | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self._device = device or emulator_device()
        self._loaded: dict[Path, EmulatorKernel] = {}

    @property
    def device(self) -> Device:
        return self._device

    def load(self, compiled: CompiledKernel) -> EmulatorKernel:
        """See `Executor.load`."""
        if compiled.binary not in self._loaded:
            compiled.read()  # a truncated file would end this process
            try:
                function = ctypes.CDLL(str(compiled.binary)).sparsegen_emulator_launch
            except (OSError, AttributeError) as error:
                raise LaunchError(f"{compiled.binary} cannot be loaded: {error}") from error
            function.restype = ctypes.c_int
            function.argtypes = [
                ctypes.c_uint * 3,
                ctypes.c_uint * 3,
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.c_int,
                ctypes.c_char_p,
                ctypes.c_size_t,
            ]
            self._loaded[compiled.binary] = EmulatorKernel(compiled.entry, function)
        return self._loaded[compiled.binary]

    def upload(self, array: Array) -> HostBuffer:
        buffer = HostBuffer(array.nbytes)
        buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def allocate(self, nbytes: int) -> HostBuffer:
        return HostBuffer(nbytes)

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Set every byte; 0xFF makes NaN of every supported dtype."""
        ctypes.memset(buffer.address, byte, buffer.nbytes)

    def download(self, buffer: Buffer, array: Array) -> None:
        """Copy into ``array``, which must be C-contiguous and of the buffer's size."""
        if array.nbytes != buffer.nbytes or not array.flags.c_contiguous:
            raise LaunchError(
                f"a buffer of {buffer.nbytes} bytes does not fit an array of {array.nbytes} bytes"
            )
        ctypes.memmove(array.ctypes.data, buffer.address, buffer.nbytes)

    def overwrite(self, buffer: Buffer, array: Array) -> None:
        """Copy an array over a buffer of its size."""
        contiguous = np.ascontiguousarray(array)
        ctypes.memmove(buffer.address, contiguous.ctypes.data, contiguous.nbytes)

    def entered(self) -> AbstractContextManager[None]:
        """Any thread may use the emulator at any time."""
        return nullcontext()

    def activate(self) -> None:
        """No-op: there is nothing to prepare."""

    def bind(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int | TensorMap | None]
    ) -> Callable[..., None]:
        """See `Executor.bind`; the stream has no meaning here."""

        def call(stream: int, *addresses: int) -> None:
            open_places = iter(addresses)

            def filled(argument: Buffer | int | TensorMap | None) -> Buffer | int | bytes:
                if isinstance(argument, TensorMap):
                    return encoded(argument, next(open_places))
                return Address(next(open_places)) if argument is None else argument

            self._run(kernel, launch, [filled(argument) for argument in arguments])

        return call

    def launch(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int], stream: int = 0
    ) -> None:
        """Run the kernel to its end; ``stream`` has no meaning here.

        Raises:
            KernelFault: a divergent barrier, a bad shuffle, ...; the text names the block and the line.
            LaunchError: no device could launch it.
        """
        self._run(kernel, launch, arguments)

    def _run(self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int | bytes]) -> None:
        if launch.is_empty:
            return
        if not isinstance(kernel, EmulatorKernel):
            raise LaunchError("this kernel was not loaded by the emulator")
        values = [_parameter(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        error = ctypes.create_string_buffer(ERROR_BYTES)
        outcome = kernel.function(
            (ctypes.c_uint * 3)(*launch.grid),
            (ctypes.c_uint * 3)(*launch.block),
            launch.shared_memory_bytes,
            pointers,
            self._threads,
            error,
            ERROR_BYTES,
        )
        if outcome != LAUNCH_DONE:
            text = f"{kernel.entry}: {error.value.decode(errors='replace')}"
            raise KernelFault(text) if outcome == LAUNCH_FAULTED else LaunchError(text)

    def synchronize(self) -> None:
        """No-op: launches are synchronous."""

    def pinned(self, nbytes: int) -> HostPinnedMemory:
        """See `Executor.pinned`."""
        return HostPinnedMemory(nbytes)

    def copy_stream(self) -> HostCopyStream:
        """See `Executor.copy_stream`."""
        return HostCopyStream()

    def free_bytes(self) -> None:
        """Returns None: the memory is the host's."""

    def event(self) -> HostEvent:
        return HostEvent()

    def overwrite_l2(self) -> None:
        """The host's caches are left as they are."""

    def clocks(self) -> tuple[int | None, int | None]:
        return None, None

    def close(self) -> None:
        self._loaded.clear()


def _parameter(
    argument: Buffer | int | bytes,
) -> ctypes.c_void_p | ctypes.c_int32 | ctypes.Array[ctypes.c_char]:
    if isinstance(argument, bytes):  # a tensor map, by value
        return _aligned(argument)
    if isinstance(argument, (int, np.integer)):
        if not INT32.min <= argument <= INT32.max:
            raise LaunchError(f"the integer argument {argument} does not fit 32 bits")
        return ctypes.c_int32(int(argument))
    return ctypes.c_void_p(argument.address)


def _aligned(encoded_map: bytes) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a tensor map where kernels may read them by value."""
    storage = ctypes.create_string_buffer(len(encoded_map) + MAP_ALIGNMENT)
    place = -ctypes.addressof(storage) % MAP_ALIGNMENT
    found = (ctypes.c_char * len(encoded_map)).from_buffer(storage, place)
    found.raw = encoded_map
    return found
