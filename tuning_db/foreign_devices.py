"""Devices that records from elsewhere name: each is what its key says, and what the database knows of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sparsegen import backends
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device, cuda_key
from sparsegen.tuning_db.conversion import described

if TYPE_CHECKING:
    from sparsegen.tuning_db.store import Store

OF_ITS_MACHINE = ("multiprocessors",)  # the emulator has as many as the machine has processors


def is_emulator_by_half(device: Device) -> bool:
    """Whether it has one of the emulator's key and backend alone: its times would pass for another's."""
    emulator = backends.emulator_device()
    return (device.key == emulator.key) != (device.backend == emulator.backend)


def has_own_facts(device: Device) -> bool:
    """Whether it has the key of its backend and name, and where it is the emulator, the emulator's facts."""
    emulator = backends.emulator_device()
    if device.backend == emulator.backend:
        return _facts(device) == _facts(emulator)
    return device.key == cuda_key(device.name, device.compute_capability)


def require_known_facts(
    known: Store, devices: Iterable[Device], source: object, error: type[SparsegenError]
) -> None:
    """Refuse devices that a database knows by their key with other facts.

    Raises:
        SparsegenError: ``error``: there is one.
    """
    facts = {tuned.device.key: _facts(tuned.device) for tuned in known.list_workloads()}
    for device in devices:
        if facts.get(device.key, _facts(device)) != _facts(device):
            raise error(
                f"{source}: the device {device.key} is known to {known.location} with other facts; nothing is imported"
            )


def _facts(device: Device) -> dict[str, Any]:
    facts = described(device)
    if device.backend == "emulator":
        for name in OF_ITS_MACHINE:
            del facts[name]
    return facts
