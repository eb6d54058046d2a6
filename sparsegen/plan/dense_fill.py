"""New values in a full weight by one launch, in the place of several operations of PyTorch."""

from __future__ import annotations

from sparsegen.backends.executor import Executor
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import Buffer


class DenseFill(OwnLaunch):
    """Puts values, one for each nonzero in the order of their places, into a full matrix on a device.

    ``bound(stream, address of the values)``; the device's context is current when it is called, or none is.
    """

    def __init__(self, full: Buffer, itemsize: int, places: Buffer, executor: Executor) -> None:
        """
        Args:
            full: contiguous, of elements of 2 or 4 bytes; as a buffer that lives as long as this.
            places: int64, of each nonzero the number of its element; likewise.

        Raises:
            CompileError, DeviceUnavailableError, LaunchError: the kernel cannot be compiled or loaded.
        """
        super().__init__(executor)
        with executor.entered():
            (self._kernel,) = plain_launchers(executor, "scatter.cu", f"scatter_{8 * itemsize}")
            executor.synchronize()  # calls may come on other streams than those that the places were made on
        self._full, self._places = full, places

    def _bind(self) -> Bound:
        count = self._places.nbytes // 8
        return self._kernel.bind(count, count, self._places, None, self._full)
