"""New values in a full weight by one launch, in the place of several operations of PyTorch."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import THREADS, compiled_kernels
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.system.device_memory import Buffer


class DenseFill:
    """Puts values, one for each nonzero in the order of their places, into a full matrix on a device."""

    def __init__(self, full: Buffer, itemsize: int, places: Buffer, executor: Executor) -> None:
        """
        Args:
            full: row-major, of elements of 2 or 4 bytes; as a buffer that lives as long as this.
            places: int64, of each nonzero the number of its element; likewise.

        Raises:
            CompileError, DeviceUnavailableError, LaunchError: the kernel cannot be compiled or loaded.
        """
        count = places.nbytes // 8
        with executor.entered():
            (self._kernel,) = compiled_kernels(executor, ("scatter.cu", f"scatter_{8 * itemsize}"))
            executor.synchronize()  # calls may come on other streams than those that the places were made on
        self._launch = Launch((-(-count // THREADS), 1, 1), (THREADS, 1, 1))
        self._arguments: list[Buffer | int | TensorMap | None] = [count, places, None, full]
        self._executor, self._mine = executor, threading.local()

    def __call__(self, address: int, stream: int) -> None:
        """Start it on a stream, with the values at an address; the device's context is current, or none is."""
        try:
            bound = self._mine.bound
        except AttributeError:
            bound = self._bind_here()
        bound(stream, address)

    def _bind_here(self) -> Callable[[int, int], None]:
        self._executor.activate()
        self._mine.bound = self._executor.bind(self._kernel, self._launch, self._arguments)
        return self._mine.bound  # type: ignore[no-any-return]
