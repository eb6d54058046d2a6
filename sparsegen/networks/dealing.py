"""Inputs dealt to several devices: chunks that each takes when it is free."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.matrix.csr import Array
from sparsegen.networks.device_run import DeviceRun
from sparsegen.networks.inputs import Inputs
from sparsegen.networks.packed_network import PackedNetwork
from sparsegen.operators.sparse_network import Activation, Readout

GOLDEN = (5**0.5 - 1) / 2
LEAST_OF_A_WAVE = 4  # the smallest chunks are a fourth of what fills all multiprocessors


def chunk_sizes(count: int, devices: int, most: int, least: int) -> list[int]:
    """How many inputs each chunk has: large ones, and towards the end smaller ones, so that devices end together.

    A chunk is halved as soon as not every device would get one of its size (Polychronopoulos and Kuck, Guided
    Self-Scheduling, 1987).
    """
    sizes, left, size = [], count, most
    while left:
        while size > least and left < devices * size:
            size = max(least, size // 2)
        sizes.append(min(size, left))
        left -= sizes[-1]
    return sizes


def evenly(count: int) -> Array:
    """The numbers below ``count`` in an order of which every part is spread evenly over all of them.

    They are multiples of a number that has no common divisor with ``count``, about the golden section of it.
    """
    step = round(count * GOLDEN)
    while math.gcd(step, count) > 1:
        step += 1
    found: Array = np.arange(count) * max(1, step) % count
    return found


def dealing_order(packed: PackedNetwork, inputs: Inputs, hands: int) -> Array:
    """The numbers of inputs as they are dealt.

    Inputs with more ones live longer: where some die, every part of the order has as many of these as the others.
    """
    if hands == 1 or packed.activation is not Activation.DYING_RELU:
        return np.arange(inputs.count)
    found: Array = np.argsort(inputs.ones(), kind="stable")[evenly(inputs.count)]
    return found


class ChunkQueue:
    """Numbers of inputs, chunk by chunk, for any thread to take."""

    def __init__(self, order: Array, sizes: Sequence[int]) -> None:
        self._chunks = np.split(order, np.cumsum(sizes)[:-1])
        self._taken = 0
        self._turn = threading.Lock()

    def take(self) -> Array | None:
        """The next chunk; None behind the last."""
        with self._turn:
            if self._taken == len(self._chunks):
                return None
            self._taken += 1
            return self._chunks[self._taken - 1]

    def empty(self) -> None:
        """Let nobody take any more, since somebody failed."""
        with self._turn:
            self._taken = len(self._chunks)


@dataclass(frozen=True, slots=True)
class Dealt:
    """What came of it.

    Attributes:
        results: float32 totals, or inputs × outputs in storage form, in the order of the inputs.
        inputs_of: how many inputs each device took.
        copies_of: how many segments each brought.
    """

    results: Array
    inputs_of: tuple[int, ...]
    copies_of: tuple[int, ...]


class DeviceGroup:
    """A packed network on several devices, each with memory and a thread of its own."""

    def __init__(self, packed: PackedNetwork, executors: Sequence[Executor], wave: int) -> None:
        """Allocate; weights are sent when they are needed.

        Args:
            wave: inputs that fill all multiprocessors of a device.
        """
        self.packed, self._executors, self._wave = packed, executors, wave
        self._runs: list[DeviceRun | None] = [None] * len(executors)
        self._turn = threading.Lock()

    def infer(self, inputs: Inputs) -> Dealt:
        """Results of all inputs; one call at a time.

        Raises:
            LaunchError: a device failed, or has too little memory; the others stop after their chunk.
            OperandError: inputs that the dtype does not hold.
        """
        packed = self.packed
        if packed.readout is Readout.TOTALS:
            results = np.zeros(inputs.count, np.float32)
        else:
            results = np.zeros((inputs.count, packed.outputs), packed.dtype.storage)
        count, most = len(self._executors), packed.plan.batch
        # Of few inputs that live the last layers cost as much as those of many: chunks stay large where inputs die.
        is_halved = count > 1 and packed.activation is not Activation.DYING_RELU
        least = max(1, min(most, self._wave // LEAST_OF_A_WAVE)) if is_halved else most
        sizes = chunk_sizes(inputs.count, count, most, least)
        queue = ChunkQueue(dealing_order(packed, inputs, count), sizes)
        with self._turn, ThreadPoolExecutor(count, thread_name_prefix="device") as pool:
            jobs = [pool.submit(self._infer_on, i, inputs, queue, results) for i in range(count)]
            told = [job.result() for job in jobs]
        return Dealt(results, tuple(one for one, _ in told), tuple(copies for _, copies in told))

    def _infer_on(self, i: int, inputs: Inputs, queue: ChunkQueue, results: Array) -> tuple[int, int]:
        taken = 0

        def next_chunk() -> Array | None:
            nonlocal taken
            chunk = queue.take()
            taken += 0 if chunk is None else chunk.size
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
            self._runs[i] = None  # what was under way is not known
            queue.empty()
            raise
