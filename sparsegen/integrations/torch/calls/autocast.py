"""Operands under autocast: layers cast them as PyTorch's own do."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)

# Tests for autocast on any device: one function of C, so that calls without it take no other step.
is_any_autocast = torch._C._is_any_autocast_enabled


def autocast_dtype(operand: Tensor, device: torch.device | None = None) -> torch.dtype | None:
    """Returns the dtype that autocast on a device, by default the operand's, gives an operand.

    None where it stays as it is: without autocast, of float64 and whole numbers, and on devices that have none (meta).
    """
    kind = (operand.device if device is None else device).type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    casts = operand.dtype.is_floating_point and operand.dtype is not torch.float64
    return torch.get_autocast_dtype(kind) if casts else None


def without_autocast(operand: Tensor) -> AbstractContextManager[object]:
    """A context in which products have their operands' dtype, as kernels' results; free of cost without autocast."""
    return torch.autocast(operand.device.type, enabled=False) if is_any_autocast() else nullcontext()


def cast_like_dense(operand: T, device: torch.device) -> T:
    """An operand in the dtype that autocast on a device asks for."""
    if operand is None or not is_any_autocast():
        return operand
    dtype = autocast_dtype(operand, device)
    return operand if dtype is None else operand.to(dtype)
