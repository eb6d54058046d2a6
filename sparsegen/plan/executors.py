"""The executors that operators of this process share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from sparsegen.backends.executor import Executor
from sparsegen.kernels.base import Device

Made = TypeVar("Made")

_executors: dict[tuple[Device, int], Executor] = {}  # by device and ordinal: equal GPUs compare equal
_executors_lock = threading.Lock()


def shared_executor(device: Device) -> Executor:
    """The process's executor of a device; operators share it, and it lives as long as the process."""
    from sparsegen import backends

    with _executors_lock:
        key = (device, device.index)
        if key not in _executors:
            _executors[key] = backends.open_executor(device)
        return _executors[key]


def made_here(executor: Executor, make: Callable[[], Made]) -> Made:
    """Makes something for the calling thread to launch, and readies the executor for its launches from then on."""
    with executor.entered():
        made = make()
    executor.activate()  # behind the block, which leaves the thread as it was
    return made
