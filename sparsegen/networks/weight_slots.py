"""A packed network's segments on a device: all of them, or two, of which one comes while the other is computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparsegen.backends.executor import CopyStream, Executor, Moment, PinnedMemory
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.csr import Array
from sparsegen.networks.inputs import Inputs
from sparsegen.networks.packed_network import PackedNetwork
from sparsegen.system.device_memory import Address, Buffer

PIECE_BYTES = 32 << 20  # of staging memory; two pieces
WRITERS = 8  # threads that fill a piece: one is slower than the bus
LEAST_BYTES = 1 << 20  # for a thread


class Staging:
    """Sends arrays of any host memory by way of pinned pieces: one fills while the other is copied."""

    def __init__(self, executor: Executor, stream: CopyStream, nbytes: int, row_bytes: int) -> None:
        """
        Args:
            nbytes: as many may be sent together.
            row_bytes: of a row of inputs, at the most; a piece holds one.
        """
        size = max(1, row_bytes, min(PIECE_BYTES, nbytes))
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="staging")
        self._pieces: tuple[PinnedMemory, ...] = (executor.pinned(size), executor.pinned(size))
        self._moments: list[Moment | None] = [None, None]
        self._stream, self._next = stream, 0

    def send(self, array: Array, address: int) -> None:
        """Queue a copy; when this returns the array may change."""
        flat = array.reshape(-1).view(np.uint8)

        def write(some: slice, piece: Array) -> None:
            piece[:] = flat[some]

        self._send(flat.size, 1, write, address)

    def send_inputs(self, inputs: Inputs, numbers: Array, address: int) -> None:
        """The same for the rows of some inputs."""
        width = inputs.row_bytes

        def write(some: slice, piece: Array) -> None:
            inputs.write(numbers[some], piece.reshape(-1, width))

        self._send(numbers.size, width, write, address)

    def _send(self, count: int, width: int, write: Callable[[slice, Array], None], address: int) -> None:
        """Elements of ``width`` bytes, which ``write`` puts into uint8: several threads for each piece."""
        most = max(1, self._pieces[0].array.size // width)
        for begin in range(0, count, most):
            turn, self._next = self._next, 1 - self._next
            before = self._moments[turn]
            if before is not None:
                before.wait()
            size = min(most, count - begin)
            piece = self._pieces[turn].array[: size * width]
            cuts = (
                np.linspace(0, size, min(WRITERS, 1 + size * width // LEAST_BYTES) + 1).astype(int).tolist()
            )
            jobs = [
                self._writers.submit(write, slice(begin + one, begin + end), piece[one * width : end * width])
                for one, end in itertools.pairwise(cuts)
            ]
            for job in jobs:
                job.result()
            self._stream.send(piece, Address(address + begin * width, piece.size))
            self._moments[turn] = self._stream.moment()


class WeightSlots:
    """Device memory for as many segments as the plan says.

    Attributes:
        copies: how many segments were brought so far.
    """

    def __init__(
        self, packed: PackedNetwork, executor: Executor, stream: CopyStream, staging: Staging
    ) -> None:
        self._packed, self._stream, self._staging = packed, stream, staging
        count = min(len(packed.segments), packed.plan.slots)
        self._slots: list[Buffer] = [executor.allocate(packed.slot_bytes) for _ in range(count)]
        self._holds: list[int | None] = [None] * count  # which segment
        self._arrives: list[Moment | None] = [None] * count
        self._current = 0
        self.copies = 0

    def has(self, segment: int) -> bool:
        """Whether it is there, or on its way."""
        return segment in self._holds

    def hold_kernels_for(self, segment: int) -> Packed[Buffer]:
        """The segment on the device; kernels that are launched from now on find it there."""
        if segment not in self._holds:
            self.bring(self.make_room(segment))
        self._current = self._holds.index(segment)
        moment = self._arrives[self._current]
        if moment is not None:
            self._stream.hold_kernels(moment)
            self._arrives[self._current] = None
        return self._packed.segments[segment].on_device(self._slots[self._current].address)

    def make_room(self, segment: int | None) -> tuple[int, int] | None:
        """A slot for a segment, once the kernels that were launched so far have ended; None where it is there already.

        Call this before those are launched that compute beside the copy, and `bring` afterwards.
        """
        if segment is None or segment in self._holds:
            return None
        empty = [i for i, held in enumerate(self._holds) if held is None]
        slot = empty[0] if empty else (self._current + 1) % len(self._slots)
        self._stream.wait_for_kernels()
        return segment, slot

    def bring(self, room: tuple[int, int] | None) -> None:
        """Queue the copy for which `make_room` made room."""
        if room is None:
            return
        segment, slot = room
        image, address = self._packed.segments[segment].image, self._slots[slot].address
        if self._packed.is_pinned:
            self._stream.send(image, Address(address, image.nbytes))
        else:
            self._staging.send(image, address)
        self._holds[slot], self._arrives[slot] = segment, self._stream.moment()
        self.copies += 1
