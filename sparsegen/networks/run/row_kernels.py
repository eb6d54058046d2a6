"""Plain kernels for rows of neurons on a device, between a network's launches: from bits, which live, those that do."""

from __future__ import annotations

from sparsegen.backends.executor import Executor, LoadedKernel
from sparsegen.backends.plain import compiled_kernels
from sparsegen.kernels.launch import Launch
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.integers import ceil_div

FILE = "network_inputs.cu"
THREADS = 256  # threads of a block
PART = 1024  # elements of a row that a warp takes


class RowKernels:
    """Launches them on an executor that the calling thread has entered; see network_inputs.cu for what they do."""

    def __init__(self, executor: Executor, itemsize: int) -> None:
        """
        Args:
            itemsize: bytes of a neuron, 2 or 4.
        """
        bits = 8 * itemsize
        self._executor = executor
        self._unpack, self._find_alive, self._gather = compiled_kernels(
            executor, *((FILE, f"{name}_{bits}") for name in ("unpack", "find_alive", "gather"))
        )

    def unpack(
        self, count: int, given: int, neurons: int, row_bytes: int, one: int, bits: Buffer, y: Buffer
    ) -> None:
        """Rows of neurons from rows of bits.

        Args:
            given: neurons that have a bit; others are zero.
            one: stored form of a neuron that is on.
        """
        arguments = (count, given, neurons, row_bytes, one, bits, y)
        self._run(self._unpack, count * ceil_div(neurons, PART), *arguments)

    def find_alive(self, count: int, neurons: int, y: Buffer, alive: Buffer) -> None:
        """int32, of each row whether a neuron is not zero."""
        self._run(self._find_alive, count, count, neurons, y, alive)

    def gather(self, count: int, neurons: int, rows: Buffer, source: Buffer, to: Buffer) -> None:
        """The rows whose numbers are listed."""
        self._run(self._gather, count * ceil_div(neurons, PART), count, neurons, rows, source, to)

    def _run(self, kernel: LoadedKernel, warps: int, *arguments: Buffer | int) -> None:
        launch = Launch((ceil_div(warps * WARP, THREADS), 1, 1), (THREADS, 1, 1))
        self._executor.launch(kernel, launch, arguments)
