"""The two halves of a backend: a toolchain that compiles and an executor that runs; CUDA and the emulator have both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sparsegen.errors import CacheEntryError, LaunchError
from sparsegen.kernels.base import Device
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.system.device_memory import Address, Buffer
from sparsegen.system.numpy_types import Array

__all__ = [
    "Address",
    "Buffer",
    "CompiledKernel",
    "CopyStream",
    "Event",
    "Executor",
    "LoadedKernel",
    "Moment",
    "PinnedMemory",
    "Toolchain",
]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A compiled variant on disk.

    Attributes:
        entry: name of the kernel function.
        binary: cubin (CUDA) or shared object (emulator); ``source`` lies beside it.
        digest: the binary's SHA-256, in hexadecimal digits.
        registers, spill_bytes, static_shared_bytes: for each thread or block, if the compiler tells.
    """

    entry: str
    source: Path
    binary: Path
    digest: str
    registers: int | None = None
    spill_bytes: int | None = None
    static_shared_bytes: int | None = None

    def read(self) -> bytes:
        """The binary, as it was compiled; whoever loads one reads it here.

        Raises:
            CacheEntryError: it is gone, or was changed since.
        """
        try:
            image = self.binary.read_bytes()
        except OSError as error:
            raise CacheEntryError(f"{self.binary} cannot be loaded: {error.strerror}") from error
        if hashlib.sha256(image).hexdigest() != self.digest:
            raise CacheEntryError(f"{self.binary} is not loaded, as it is not what was compiled")
        return image


class Toolchain(Protocol):
    """Compiles rendered sources; needs no device and may be called from many threads at once."""

    @property
    def fingerprint(self) -> str:
        """Compiler, version, options and architecture: all that shapes the binary beside the source."""

    def warm_up(self, jobs: int) -> None:
        """Start in the background what ``jobs`` compiles at once will need; returns at once, and never fails."""

    def make_ready(self) -> None:
        """Make what all compiles share; at once where it is there, or where there is nothing.

        Raises:
            CompileError, DeviceUnavailableError: see `compile`.
        """

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """Compile, or find in the cache.

        Raises:
            CompileError: with the compiler's log; also after ``timeout`` seconds.
            MachineError: the machine is to blame; `CacheError` where it is the cache.
            DeviceUnavailableError: the compiler is missing; the message says how to get it.
        """


class LoadedKernel(Protocol):
    """A kernel ready to launch on one device."""


class Event(Protocol):
    """A moment in what a device does, to be recorded once."""

    def record(self) -> None:
        """Marks the moment at which the device has done what was queued so far."""

    def has_passed(self) -> bool:
        """True if the device has passed it, and so may have waited for what the host queued afterwards."""

    def us_since(self, start: Event) -> float:
        """Microseconds from another event to this one; both have passed."""


class PinnedMemory(Protocol):
    """Host memory that a device reads and writes while the host goes on; freed when the object goes."""

    @property
    def array(self) -> Array:
        """The memory's bytes: uint8."""


class Moment(Protocol):
    """A moment in what a `CopyStream` does."""

    def has_passed(self) -> bool:
        """True if all copies that were queued before have ended."""

    def wait(self) -> None:
        """Return when they have.

        Raises:
            LaunchError: a copy failed.
        """


def require_fitting(array: Array, buffer: Buffer) -> None:
    """Raises LaunchError where an array is not contiguous, or larger than the device memory of a copy."""
    if not array.flags.c_contiguous or array.nbytes > buffer.nbytes:
        raise LaunchError(
            f"an array of {array.nbytes} bytes, contiguous: {array.flags.c_contiguous}, does not fit {buffer.nbytes} "
            "bytes of device memory"
        )


class CopyStream(Protocol):
    """Copies between host and device in the order of the calls, beside the kernels of the default stream.

    Neither waits for the other but where it is told to. Arrays on the host that are not pinned are copied too, but the
    host may wait for them. They must live, and must not change, until a later `Moment` has passed.
    """

    def send(self, array: Array, target: Buffer) -> None:
        """Queue a copy of a contiguous array to the first bytes of device memory."""

    def fetch(self, source: Buffer, array: Array) -> None:
        """Queue a copy of the first bytes of device memory into a contiguous array."""

    def moment(self) -> Moment:
        """Returns the moment at which all copies that were queued so far have ended."""

    def hold_kernels(self, moment: Moment) -> None:
        """Kernels that are launched from now on start after a moment."""

    def wait_for_kernels(self) -> None:
        """Copies that are queued from now on start after all kernels that were launched so far."""


class Executor(Protocol):
    """Runs kernels on one device, from one thread at a time."""

    @property
    def device(self) -> Device: ...

    def load(self, compiled: CompiledKernel) -> LoadedKernel:
        """Load a compiled kernel onto the device.

        Raises:
            CacheEntryError: the binary is gone, or was changed since it was compiled.
            LaunchError: it cannot be loaded.
        """

    def upload(self, array: Array) -> Buffer: ...

    def allocate(self, nbytes: int) -> Buffer: ...

    def fill(self, buffer: Buffer, byte: int) -> None:
        """Set every byte; 0xFF makes NaN of every supported dtype."""

    def download(self, buffer: Buffer, array: Array) -> None: ...

    def overwrite(self, buffer: Buffer, array: Array) -> None:
        """Copy an array over a buffer of its size."""

    def entered(self) -> AbstractContextManager[None]:
        """Lets the calling thread use this executor inside the block, whichever thread opened it."""

    def activate(self) -> None:
        """Readies the calling thread for bound launches, for as long as it lives."""

    def bind(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int | TensorMap | None]
    ) -> Callable[..., None]:
        """Fix a launch but for its stream, the addresses that stand as None, and those of the arrays of tensor maps.

        A map is encoded anew only when its array's address changes.

        Returns:
            ``bound(stream, *addresses)``: fills the open places and maps in order and launches. It belongs to one
            thread.
        """

    def launch(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int], stream: int = 0
    ) -> None:
        """Pointers for buffers, 32-bit integers for ints; asynchronous on CUDA.

        Raises:
            LaunchError: the launch was refused or an earlier one failed.
        """

    def synchronize(self) -> None: ...

    # --- what brings data while kernels run ---

    def pinned(self, nbytes: int) -> PinnedMemory:
        """Memory of the host that copies on streams need.

        Raises:
            DeviceMemoryError: the host has not so much memory that can be pinned.
        """

    def copy_stream(self) -> CopyStream: ...

    def free_bytes(self) -> int | None:
        """Returns the bytes of free device memory; None if it is the host's."""

    # --- what `sparsegen.measure.clock` measures with ---

    def event(self) -> Event: ...

    def overwrite_l2(self) -> None:
        """Queue writing over more than the second-level cache holds, so that neither input nor output stays in it."""

    def clocks(self) -> tuple[int | None, int | None]:
        """SM clock in MHz and the mask of throttle reasons, read while the device is still warm; None if unknown."""

    def close(self) -> None: ...
