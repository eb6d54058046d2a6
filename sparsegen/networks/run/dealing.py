"""Inputs dealt to several devices: chunks that each takes when it is free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.networks.model.chunks import Chunk, chunks_of
from sparsegen.networks.model.inputs import Inputs
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.device_run import DeviceRun
from sparsegen.operators.sparse_network import Activation, Readout
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, slots=True)
class Dealt:
    """Result of inference on several devices.

    Attributes:
        results: float32 totals, or inputs × outputs in storage form, in the order of the inputs.
        inputs_of: number of inputs of each device.
        copies_of: number of segments that each copied.
    """

    results: Array
    inputs_of: tuple[int, ...]
    copies_of: tuple[int, ...]


class DeviceGroup:
    """A packed network on several devices, each with memory and a thread of its own."""

    def __init__(self, packed: PackedNetwork, executors: Sequence[Executor], granule: int) -> None:
        """Allocate; weights are sent when they are needed.

        Args:
            granule: inputs that a device computes together; chunks are multiples of it.
        """
        self.packed, self._executors, self._granule = packed, executors, granule
        self._runs: list[DeviceRun | None] = [None] * len(executors)
        self._turn = threading.Lock()

    def chunks(self, count: int, hands: int) -> list[Chunk]:
        """Divides ``count`` inputs into chunks for ``hands`` devices.

        If inputs die, every chunk has inputs from everywhere, so that about as many of its inputs live as of others'.
        """
        is_spread = hands > 1 and self.packed.activation is Activation.DYING_RELU
        return chunks_of(count, hands, self.packed.plan.batch, self._granule, is_spread=is_spread)

    def infer(self, inputs: Inputs, chunks: Sequence[Chunk] | None = None) -> Dealt:
        """Results of all inputs; one call at a time.

        Args:
            chunks: infer these inputs alone; results of others are zero.

        Raises:
            LaunchError: a device failed, or has too little memory; the others stop after their chunk.
            OperandError: inputs that the dtype does not hold.
        """
        packed, count = self.packed, len(self._executors)
        if packed.readout is Readout.TOTALS:
            results = np.zeros(inputs.count, np.float32)
        else:
            results = np.zeros((inputs.count, packed.outputs), packed.dtype.storage)
        queue = deque(self.chunks(inputs.count, count) if chunks is None else chunks)
        with self._turn, ThreadPoolExecutor(count, thread_name_prefix="device") as pool:
            jobs = [pool.submit(self._infer_on, i, inputs, queue, results) for i in range(count)]
            told = [job.result() for job in jobs]
        return Dealt(results, tuple(one for one, _ in told), tuple(copies for _, copies in told))

    def _infer_on(self, i: int, inputs: Inputs, queue: deque[Chunk], results: Array) -> tuple[int, int]:
        taken = 0

        def next_chunk() -> Chunk | None:
            nonlocal taken
            try:
                chunk = queue.popleft()  # each is taken once: a deque is safe between threads
            except IndexError:
                return None
            taken += chunk.count
            return chunk

        executor = self._executors[i]
        try:
            with executor.entered():
                run = self._runs[i]
                if run is None:
                    run = self._runs[i] = DeviceRun(self.packed, executor)
                before = run.weights.copies
                run.infer(inputs, next_chunk, results)
                return taken, run.weights.copies - before
        except BaseException:
            self._runs[i] = None  # the state of its work is unknown
            queue.clear()  # others stop after their chunk
            raise
