"""Kernels for clocks and rates on a CUDA device: they spin, copy and read."""

from __future__ import annotations

from collections.abc import Callable

from sparsegen.backends.executor import Executor
from sparsegen.kernels.launch import Launch
from sparsegen.plan.plain_launcher import plain_launchers

SPIN_CYCLES_PER_US = 2000  # at 2 GHz; at a lower clock it spins longer, which does no harm
COPY_BLOCKS_PER_MULTIPROCESSOR = 2
COPY_THREADS = 1024
COPY_BYTES_PER_STEP = 16
FLUSHES = 4  # sizes of the L2 to read until nothing is left in it that was written


class Spinner:
    """Keeps a CUDA device busy for some microseconds at a time."""

    def __init__(self, executor: Executor) -> None:
        (self._kernel,) = plain_launchers(executor, "timing.cu", "spin")

    def spin(self, us: float) -> Callable[[], None]:
        """A launch that keeps the device busy for about so long."""
        cycles = int(us * SPIN_CYCLES_PER_US)
        bound = self._kernel.bind(Launch.flat(1, 1), cycles)
        return lambda: bound(0)


class Copier:
    """Copies device memory, all multiprocessors at once.

    Args:
        nbytes: bytes to copy, a multiple of 16.
    """

    def __init__(self, executor: Executor, nbytes: int) -> None:
        (kernel,) = plain_launchers(executor, "timing.cu", "copy")
        self._buffers = executor.allocate(nbytes), executor.allocate(nbytes)
        executor.fill(self._buffers[0], 0)
        count = nbytes // COPY_BYTES_PER_STEP
        self._bound = kernel.bind(_everywhere(executor), count, *self._buffers)

    def __call__(self) -> None:
        self._bound(0)


class Reader:
    """Reads device memory that nothing else uses, all multiprocessors at once; after it the L2 holds clean lines."""

    def __init__(self, executor: Executor) -> None:
        nbytes = FLUSHES * executor.device.l2_bytes
        (kernel,) = plain_launchers(executor, "timing.cu", "read")
        self._buffers = executor.allocate(nbytes), executor.allocate(COPY_BYTES_PER_STEP)
        executor.fill(self._buffers[0], 0)
        count = nbytes // COPY_BYTES_PER_STEP
        self._bound = kernel.bind(_everywhere(executor), count, *self._buffers)

    def __call__(self) -> None:
        self._bound(0)


def _everywhere(executor: Executor) -> Launch:
    """All multiprocessors at once."""
    blocks = executor.device.multiprocessors * COPY_BLOCKS_PER_MULTIPROCESSOR
    return Launch((blocks, 1, 1), (COPY_THREADS, 1, 1))
