"""Copies between a device and any host memory by way of pinned pieces, which several threads fill or empty."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from sparsegen.backends.executor import CopyStream, Executor, Moment, PinnedMemory
from sparsegen.networks.model.chunks import Chunk
from sparsegen.networks.model.inputs import Inputs, write_rows
from sparsegen.networks.packed.packed_network import CHECKED_BYTES, Segment
from sparsegen.system.device_memory import Address
from sparsegen.system.numpy_types import Array

# Bytes of staging memory; two pieces: smaller ones cost more in waking threads than they hide.
PIECE_BYTES = 64 << 20
WRITERS = 8  # threads that fill a piece: one is slower than the bus
LEAST_BYTES = 1 << 20  # least bytes of a thread


class Writers:
    """Threads that copy parts of a piece; NumPy leaves the interpreter to others meanwhile."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="staging")

    def copy(self, count: int, width: int, copy: Callable[[int, int], object]) -> None:
        """Calls ``copy(begin, end)`` for parts of ``count`` elements of ``width`` bytes, and waits for all of them.

        Raises:
            What ``copy`` raises, when no thread is in it any more.
        """
        parts = min(WRITERS, 1 + count * width // LEAST_BYTES)
        cuts = np.linspace(0, count, parts + 1).astype(int).tolist()
        jobs = [self._pool.submit(copy, begin, end) for begin, end in itertools.pairwise(cuts[1:])]
        try:
            copy(cuts[0], cuts[1])  # the calling thread's part
        finally:
            wait(jobs)
        for job in jobs:
            job.result()


class Staging:
    """Sends arrays: threads fill a piece, each of which sends its part by itself, while the other piece is copied."""

    def __init__(
        self, executor: Executor, stream: CopyStream, writers: Writers, nbytes: int, row_bytes: int
    ) -> None:
        """
        Args:
            nbytes: upper limit of bytes that are sent together.
            row_bytes: upper limit of a row of inputs; a piece holds one.
        """
        size = max(1, row_bytes, min(PIECE_BYTES, nbytes))
        self._executor, self._writers = executor, writers
        self._pieces: tuple[PinnedMemory, ...] = (executor.pinned(size), executor.pinned(size))
        self._moments: list[Moment | None] = [None, None]
        self._stream, self._next = stream, 0

    def require_whole(self, segment: Segment) -> None:
        """Hold a segment of a file against its checksums, by several threads.

        Raises:
            SavedOperatorError: the file is damaged.
        """
        if segment.checksums:
            self._writers.copy(len(segment.checksums), CHECKED_BYTES, segment.require_whole)

    def send(self, array: Array, address: int) -> None:
        """Queue a copy; when this returns the array may change."""
        flat = array.reshape(-1).view(np.uint8)

        def write(begin: int, end: int, piece: Array) -> None:
            piece[:] = flat[begin:end]

        self._send(flat.size, 1, write, address)

    def send_inputs(self, inputs: Inputs, chunk: Chunk, address: int) -> None:
        """The same for the rows of some inputs."""
        width = inputs.row_bytes

        def write(begin: int, end: int, piece: Array) -> None:
            write_rows(inputs, chunk, begin, end, piece.reshape(-1, width))

        self._send(chunk.count, width, write, address)

    def _send(self, count: int, width: int, write: Callable[[int, int, Array], None], address: int) -> None:
        """Elements of ``width`` bytes, which ``write`` puts into uint8: several threads for each piece."""
        most = max(1, self._pieces[0].array.size // width)
        for first in range(0, count, most):
            turn, self._next = self._next, 1 - self._next
            before = self._moments[turn]
            if before is not None:
                before.wait()
            size = min(most, count - first)
            piece = self._pieces[turn].array[: size * width]

            def copy(begin: int, end: int, first: int = first, piece: Array = piece) -> None:
                part = piece[begin * width : end * width]
                write(first + begin, first + end, part)
                with self._executor.entered():
                    self._stream.send(part, Address(address + (first + begin) * width, part.size))

            try:
                self._writers.copy(size, width, copy)
            finally:  # if a writer raised, others have sent their parts
                self._moments[turn] = self._stream.moment()
