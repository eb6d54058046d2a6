"""Devices and memory of a network that is not in one device's memory: within a budget, on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sparsegen import arguments, backends
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.packed.packing import granule
from sparsegen.networks.run.dealing import DeviceGroup
from sparsegen.plan.executors import shared_executor

MOST_OF_FREE = 0.9  # fraction of free device memory, without a budget

Devices: TypeAlias = str | Sequence[Device | str]


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices, and the bytes of each that may be used.

    Attributes:
        devices: each computes some inputs with all layers.
        budget: bytes of each; None for what is free.
    """

    devices: tuple[Device, ...]
    budget: int | None

    @classmethod
    def of(cls, memory: object, devices: Devices | None, device: Device | str | None) -> Placement:
        """Parses a call's arguments.

        Args:
            memory: bytes, or text such as ``"8 GiB"``; None for what is free.
            devices: ``"all"``, or names or numbers with commas between, or a sequence of them; None for ``device``.

        Raises:
            ConfigError: an amount or a list that makes no sense.
            DeviceUnavailableError: a device is not there.
        """
        budget = None if memory is None else arguments.nbytes(memory, "memory")
        if devices is None:
            found = [device if isinstance(device, Device) else backends.find_device(device)]
        elif isinstance(devices, str):
            found = backends.find_devices(devices)
        elif not isinstance(devices, Sequence):
            raise ConfigError(
                f"devices = {devices!r}: write all, or each device once, like 0,1, or give a list"
            )
        else:
            found = [one if isinstance(one, Device) else backends.find_device(one) for one in devices]
        if not found or len({(one.backend, one.index) for one in found}) < len(found):
            raise ConfigError("devices: expected at least one, and each of them once")
        return cls(tuple(found), budget)

    @property
    def key(self) -> tuple[Any, ...]:
        """Key of a placement. It holds the devices' indices, since equal GPUs compare equal."""
        return (self.budget, *((one.backend, one.index) for one in self.devices))

    def usable_bytes(self) -> int | None:
        """The budget, or most of what is free on the device with the least; None where memory is the host's."""
        if self.budget is not None:
            return self.budget
        free = [executor.free_bytes() for executor in self._executors()]
        known = [nbytes for nbytes in free if nbytes is not None]
        return int(MOST_OF_FREE * min(known)) if known else None

    def group(self, packed: PackedNetwork) -> DeviceGroup:
        """A packed network on these devices.

        Raises:
            ConfigError: its variant does not run there.
            DeviceMemoryError: the host cannot pin its segments.
        """
        for device in self.devices:
            packed.family.require_valid(packed.segments[0].problem, packed.config, device)
        return DeviceGroup(packed, self._executors(), granule(packed.config, self.devices[0]))

    def pinned(self, packed: PackedNetwork) -> PackedNetwork:
        """The same with its segments in pinned memory where they go to a GPU again and again."""
        is_streamed = not packed.is_resident and self.devices[0].backend == "cuda"
        return packed.pin(self._executors()[0]) if is_streamed else packed

    def _executors(self) -> list[Any]:
        """Executors of this process; the first one's is opened last, so that its context stays the calling thread's."""
        return [shared_executor(device) for device in reversed(self.devices)][::-1]
