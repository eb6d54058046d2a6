"""Launches of plain kernels, bound in one place."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.backends.executor import Executor, LoadedKernel
from sparsegen.backends.plain import THREADS, compiled_kernels
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.plan.own_launch import Bound
from sparsegen.system.device_memory import Buffer


@dataclass(frozen=True, slots=True)
class PlainLauncher:
    """A plain kernel that an executor has loaded."""

    executor: Executor
    kernel: LoadedKernel

    def bind(self, work: int | Launch, *arguments: Buffer | int | TensorMap | None) -> Bound:
        """Fix a launch but for its stream and the addresses that stand as None.

        Args:
            work: number of threads that have work, in blocks of `THREADS`; or any other launch.
        """
        launch = work if isinstance(work, Launch) else Launch.flat(work, THREADS)
        return self.executor.bind(self.kernel, launch, arguments)


def plain_launchers(executor: Executor, file: str, *entries: str) -> list[PlainLauncher]:
    """Kernels of a file of `sparsegen.backends.plain`, compiled side by side.

    Raises:
        CompileError, DeviceUnavailableError, LaunchError: a kernel cannot be compiled or loaded.
    """
    kernels = compiled_kernels(executor, *((file, entry) for entry in entries))
    return [PlainLauncher(executor, kernel) for kernel in kernels]
