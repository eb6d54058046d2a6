"""Operands under autocast: layers cast them as PyTorch's own do."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)

# Tests for autocast on any device: one function of C, so that calls without it take no other step.
is_any_autocast = torch._C._is_any_autocast_enabled


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Returns autocast's dtype on a device; None without autocast, and on devices that have none (meta tensors)."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if kind != "meta" and torch.is_autocast_enabled(kind) else None


def cast_like_dense(operand: T, device: torch.device) -> T:
    """An operand in the dtype that autocast asks for on a device; without autocast, and of float64, as it is."""
    if operand is None or not is_any_autocast() or operand.dtype == torch.float64:
        return operand
    dtype = autocast_dtype(device)
    return operand if dtype is None else operand.to(dtype)
