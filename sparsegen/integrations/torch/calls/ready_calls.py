"""Calls with tensors as before: they go to what was prepared for the first of them, without its checks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.system.bounded import Bounded

MOST_READY = 128

Ready = Callable[..., Any]  # takes the operands
Computed = tuple[
    Any, Ready | None
]  # a result, or several, and what computed it, if calls like this one may go there


class ReadyCalls:
    """What calls go to, by all that tells them apart: one that is like one before it needs no checks.

    There are at most `MOST_READY`; one more takes the place of all.
    """

    def __init__(self) -> None:
        self._ready: dict[Hashable, Ready] = Bounded(MOST_READY)

    def run(
        self,
        what: Hashable,
        operands: tuple[Tensor | None, ...],
        rest: tuple[Any, ...],
        first: Callable[..., Computed],
    ) -> Any:
        """The result by what a call like it went to, else by ``first``.

        While a CUDA graph captures that is ``first`` too, which keeps what the graph launches.

        Args:
            what: is computed.
            operands: tensors, of which the first one says where kernels run.
            rest: all other arguments.
            first: takes operands and rest, with all checks.
        """
        [leading, *_] = operands
        assert leading is not None
        device = kernel_device(leading)
        key = what, None if device is None else device.backend, kind_of(*operands), rest
        ready = self._ready.get(key)
        if ready is not None and not is_capturing(leading):
            return ready(*operands)
        result, ready = first(*operands, *rest)
        if ready is not None:
            self._ready[key] = ready
        return result


def kind_of(*tensors: Tensor | None) -> Hashable:
    """All of tensors that checks and the choice of a kernel look at."""
    return tuple(map(_kind_of_one, tensors))


def _kind_of_one(tensor: Tensor | None) -> Hashable:
    if tensor is None:
        return None
    strides = tensor.stride() if tensor.layout is torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device
