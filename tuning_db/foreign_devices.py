"""Devices that records from elsewhere name: each is what its key says, and what the database knows of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.tuning_db.conversion import Columns, described

if TYPE_CHECKING:
    from sparsegen.tuning_db.store import Store

EMULATOR = "emulator"  # its key and its backend
OF_ITS_MACHINE = ("multiprocessors",)  # the emulator has as many as the machine has processors


def is_emulator_by_half(device: Device) -> bool:
    """True if it has only one of the emulator's key and backend: its times would pass for another's."""
    return (device.key == EMULATOR) != (device.backend == EMULATOR)


def facts(device: Device) -> Columns:
    """Returns the columns of a device that are the same on every machine."""
    columns: dict[str, Any] = described(device)
    left_out = OF_ITS_MACHINE if device.backend == EMULATOR else ()
    return {name: value for name, value in columns.items() if name not in left_out}


def require_known_facts(
    known: Store, devices: Iterable[Device], source: object, error: type[SparsegenError]
) -> None:
    """Refuse devices that a database knows by their key with other facts.

    Raises:
        SparsegenError: ``error``: there is one.
    """
    of = {tuned.device.key: facts(tuned.device) for tuned in known.list_workloads()}
    for device in devices:
        if of.get(device.key, facts(device)) != facts(device):
            raise error(
                f"{source}: the device {device.key} is known to {known.location} with other facts; nothing is imported"
            )
