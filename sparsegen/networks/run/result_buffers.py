"""Results on their way back to the host: those of one batch come while the next one is computed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import CopyStream, Executor, Moment
from sparsegen.networks.packed.packed_network import RESULT_BUFFERS
from sparsegen.networks.run.staging import PIECE_BYTES, Writers
from sparsegen.system.device_memory import Address, Buffer
from sparsegen.system.numpy_types import Array


@dataclass(slots=True)
class _ResultBuffer:
    """Device memory for a batch's results, and a stream that waits for the launch that writes them."""

    memory: Buffer
    stream: CopyStream
    numbers: Array


class ResultBuffers:
    """Two buffers on the device, which launches fill in turn; their contents go to the host by way of pinned pieces."""

    def __init__(self, executor: Executor, writers: Writers, batch: int, width: int) -> None:
        """
        Args:
            batch: upper limit of inputs of a launch.
            width: bytes of an input's results.
        """
        nobody = np.zeros(0, np.int64)
        self._empty = deque(
            _ResultBuffer(executor.allocate(batch * width), executor.copy_stream(), nobody)
            for _ in range(RESULT_BUFFERS)
        )
        self._filling: deque[_ResultBuffer] = deque()
        self._writers, self._width = writers, width
        self._rows = max(1, min(PIECE_BYTES // width, batch))  # rows of a piece
        self._pieces = [executor.pinned(self._rows * width) for _ in range(2)]

    def free(self, results: Array) -> Buffer:
        """The buffer of the next launch; what the launch before the last one left there goes to ``results`` first."""
        if not self._empty:
            self._collect_one(results)
        return self._empty[0].memory

    def launched(self, numbers: Array) -> None:
        """Say that the launch which fills that buffer has been queued.

        Args:
            numbers: numbers of its inputs.
        """
        buffer = self._empty.popleft()
        buffer.numbers = numbers
        buffer.stream.wait_for_kernels()
        self._filling.append(buffer)

    def collect(self, results: Array) -> None:
        """All results that are still on the device to their places."""
        while self._filling:
            self._collect_one(results)

    def _collect_one(self, results: Array) -> None:
        buffer = self._filling.popleft()
        count, width = buffer.numbers.size, self._width
        begins = range(0, count, self._rows)
        moments = [self._fetch(buffer, turn, begin) for turn, begin in enumerate(begins[:2])]
        for turn, begin in enumerate(begins):
            moments[turn].wait()
            numbers = buffer.numbers[begin : begin + self._rows]
            rows = self._pieces[turn % 2].array[: numbers.size * width].view(results.dtype)
            rows = rows.reshape(numbers.size, *results.shape[1:])

            def copy(first: int, end: int, numbers: Array = numbers, rows: Array = rows) -> None:
                results[numbers[first:end]] = rows[first:end]

            self._writers.copy(numbers.size, width, copy)
            if turn + 2 < len(begins):
                moments.append(self._fetch(buffer, turn, begins[turn + 2]))
        self._empty.append(buffer)

    def _fetch(self, buffer: _ResultBuffer, turn: int, begin: int) -> Moment:
        """Queue copying some rows into a piece."""
        size = min(self._rows, buffer.numbers.size - begin) * self._width
        source = Address(buffer.memory.address + begin * self._width, size)
        buffer.stream.fetch(source, self._pieces[turn % 2].array[:size])
        return buffer.stream.moment()
