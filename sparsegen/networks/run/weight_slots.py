"""Slots for a packed network's segments on a device: all of them, or two, to copy one while the other is computed."""

from __future__ import annotations

from sparsegen.backends.executor import CopyStream, Executor, Moment
from sparsegen.kernels.packed import Packed
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.run.staging import Staging
from sparsegen.system.device_memory import Address, Buffer


class WeightSlots:
    """Device memory for as many segments as the plan says.

    Attributes:
        current: the number of the slot that kernels read.
        copies: number of segments that were copied so far.
    """

    def __init__(
        self, packed: PackedNetwork, executor: Executor, stream: CopyStream, staging: Staging
    ) -> None:
        self._packed, self._stream, self._staging = packed, stream, staging
        count = min(len(packed.segments), packed.plan.slots)
        self._slots: list[Buffer] = [executor.allocate(packed.slot_bytes) for _ in range(count)]
        self._holds: list[int | None] = [None] * count  # segment in each slot
        self._arrives: list[Moment | None] = [None] * count
        self.current = 0
        self._checked: set[int] = set()  # segments
        self.copies = 0

    def has(self, segment: int) -> bool:
        """True if a segment is there, or on its way."""
        return segment in self._holds

    def hold_kernels_for(self, segment: int) -> Packed[Buffer]:
        """The segment on the device; kernels that are launched from now on find it there."""
        if segment not in self._holds:
            self.bring(self.make_room(segment))
        self.current = self._holds.index(segment)
        moment = self._arrives[self.current]
        if moment is not None:
            self._stream.hold_kernels(moment)
            self._arrives[self.current] = None
        return self._packed.segments[segment].on_device(self._slots[self.current].address)

    def make_room(self, segment: int | None) -> tuple[int, int] | None:
        """A slot for a segment, once the kernels that were launched so far have ended; None where it is there already.

        Call this before those are launched that compute beside the copy, and `bring` afterwards.
        """
        if segment is None or segment in self._holds:
            return None
        empty = [i for i, held in enumerate(self._holds) if held is None]
        slot = empty[0] if empty else (self.current + 1) % len(self._slots)
        self._stream.wait_for_kernels()
        return segment, slot

    def bring(self, room: tuple[int, int] | None) -> None:
        """Queue the copy for which `make_room` made room.

        Raises:
            SavedOperatorError: the segment comes from a file, which is damaged.
        """
        if room is None:
            return
        segment, slot = room
        if segment not in self._checked:
            self._staging.require_whole(self._packed.segments[segment])
            self._checked.add(segment)
        image, address = self._packed.segments[segment].image, self._slots[slot].address
        if self._packed.is_pinned:
            self._stream.send(image, Address(address, image.nbytes))
        else:
            self._staging.send(image, address)
        self._holds[slot], self._arrives[slot] = segment, self._stream.moment()
        self.copies += 1
