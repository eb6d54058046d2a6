"""New values in a full weight by one launch, in the place of several operations of PyTorch."""

from __future__ import annotations

from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import THREADS, compiled_kernels
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.system.device_memory import Buffer
from sparsegen.system.integers import ceil_div


class DenseFill(OwnLaunch):
    """Puts values, one for each nonzero in the order of their places, into a full matrix on a device.

    ``bound(stream, address of the values)``; the device's context is current when it is called, or none is.
    """

    def __init__(self, full: Buffer, itemsize: int, places: Buffer, executor: Executor) -> None:
        """
        Args:
            full: row-major, of elements of 2 or 4 bytes; as a buffer that lives as long as this.
            places: int64, of each nonzero the number of its element; likewise.

        Raises:
            CompileError, DeviceUnavailableError, LaunchError: the kernel cannot be compiled or loaded.
        """
        super().__init__(executor)
        count = places.nbytes // 8
        with executor.entered():
            (self._kernel,) = compiled_kernels(executor, ("scatter.cu", f"scatter_{8 * itemsize}"))
            executor.synchronize()  # calls may come on other streams than those that the places were made on
        self._launch = Launch((ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1))
        self._arguments: list[Buffer | int | TensorMap | None] = [count, places, None, full]

    def _bind(self) -> Bound:
        return self.executor.bind(self._kernel, self._launch, self._arguments)
