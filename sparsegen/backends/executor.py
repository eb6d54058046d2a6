"""The two halves of a backend: a toolchain that compiles and an executor that runs; CUDA and the emulator have both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sparsegen.kernels.base import Array, Device
from sparsegen.kernels.launch import Launch
from sparsegen.system.device_memory import Address, Buffer

__all__ = ["Address", "Buffer", "CompiledKernel", "Executor", "LoadedKernel", "Timing", "Toolchain"]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A compiled variant on disk.

    Attributes:
        entry: name of the kernel function.
        binary: cubin (CUDA) or shared object (emulator); ``source`` lies beside it.
        registers, spill_bytes, static_shared_bytes: of one thread / block, where the compiler tells.
    """

    entry: str
    source: Path
    binary: Path
    registers: int | None = None
    spill_bytes: int | None = None
    static_shared_bytes: int | None = None


class Toolchain(Protocol):
    """Compiles rendered sources; needs no device and may be called from many threads at once."""

    @property
    def fingerprint(self) -> str:
        """Compiler, version, options and architecture: all that shapes the binary beside the source."""

    def compile(self, family: str, entry: str, source: str, *, timeout: float = 60.0) -> CompiledKernel:
        """Compile, or find in the cache.

        Raises:
            CompileError: with the compiler's log; also after ``timeout`` seconds.
            DeviceUnavailableError: the compiler is missing; the message says how to get it.
        """


class LoadedKernel(Protocol):
    """A kernel ready to launch on one device."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of single calls in microseconds, and what the device's clocks did meanwhile."""

    samples_us: tuple[float, ...]
    clock_mhz: int | None = None
    throttle_reasons: int | None = None


def undisturbed(taken: Sequence[tuple[float, bool]], samples: int) -> list[float]:
    """Times of the samples in which the device did not wait for the host.

    If they are less than half of what was asked for, the host is late as a rule and not by accident: then all.

    Args:
        taken: microseconds, and whether the host was late.
        samples: asked for.
    """
    kept = [us for us, late in taken if not late]
    return kept if 2 * len(kept) >= samples else [us for us, _ in taken]


class Executor(Protocol):
    """Runs kernels on one device, from one thread at a time."""

    @property
    def device(self) -> Device: ...

    def load(self, compiled: CompiledKernel) -> LoadedKernel: ...

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
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int | None]
    ) -> Callable[..., None]:
        """Fix a launch but for its stream and the addresses that stand as None.

        Returns:
            ``bound(stream, *addresses)``: fills the open places in order and launches. It belongs to one thread.
        """

    def launch(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int], stream: int = 0
    ) -> None:
        """Pointers for buffers, 32-bit integers for ints; asynchronous on CUDA.

        Raises:
            LaunchError: the launch was refused or an earlier one failed.
        """

    def synchronize(self) -> None: ...

    def measure(
        self,
        call: Callable[[], Any],
        *,
        samples: int,
        warmup: int = 3,
        cold: bool = True,
        budget_s: float = 2.0,
        lead: Callable[[], Any] | None = None,
    ) -> Timing:
        """Time single calls between two events; ``cold`` flushes the L2 before each. Stops early at the budget.

        A sample in which the device waited for the host is taken anew while the budget lasts.

        Args:
            lead: queued ahead of each first event: something that keeps the device busy for as long as the host
                needs to queue the call.
        """

    def close(self) -> None: ...
