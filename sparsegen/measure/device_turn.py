"""Exclusive use of a device while measuring: two processes that measure at once would disturb each other's times."""

from __future__ import annotations

import hashlib
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.system.host_lock import SHARED_PLACES, private_lock, shared_lock


def device_turn(
    device: Device, folder: Path, *, stop: threading.Event | None = None
) -> AbstractContextManager[None]:
    """Hold a device among all processes that measure on it.

    A GPU is known by its UUID, which is the same for all users and in all containers, whatever number it has there. The
    emulator is a part of the process that uses it, and its times say nothing: there only processes with one cache take
    turns.

    Args:
        folder: a private one, for the emulator, and if no place that users share can be used.
        stop: an event that, once set, ends the wait.

    Raises:
        CacheError: lock files can be made nowhere.
        Interrupted: ``stop`` was set.
    """
    if device.uuid is None:
        name = hashlib.sha256(f"{device.key} {device.index}".encode()).hexdigest()[:16]
        return private_lock(f"device-{name}", folder, stop=stop)
    named = Settings.from_environment().locks
    return shared_lock(device.uuid, SHARED_PLACES if named is None else (named,), folder, stop=stop)
