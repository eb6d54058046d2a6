"""Launches of plain kernels on tensors, which each thread binds for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparsegen.kernels.base import Device
from sparsegen.plan.arrays import current_stream_of
from sparsegen.plan.executors import made_here, shared_executor

Launched = Callable[..., None]  # (stream, *addresses)


class PlainLaunches(threading.local):
    """Launches of the calling thread, by device and what they are specialised for. Graphs may hold any: none goes.

    Args:
        bind: makes one: ``bind(executor, *what)``.
    """

    def __init__(self, bind: Callable[..., Launched]) -> None:
        self._bind = bind
        self._bound: dict[tuple[Any, ...], Launched] = {}

    def of(self, device: Device, *what: object) -> Launched:
        """The launch for these arguments, bound when it is first asked for."""
        key = device.backend, device.index, *what  # all that identifies the device within a process
        if key not in self._bound:
            executor = shared_executor(device)
            self._bound[key] = made_here(executor, partial(self._bind, executor, *what))
        return self._bound[key]


_current = current_stream_of(torch)


def current_stream(like: Tensor) -> Callable[[], int]:
    """Returns the function of PyTorch's current stream for such tensors; 0 on the host."""
    return partial(_current, like.get_device()) if like.is_cuda else int


def stream_of(tensor: Tensor) -> int:
    """PyTorch's current stream on the tensor's device; 0 on the host."""
    return _current(tensor.get_device()) if tensor.is_cuda else 0
