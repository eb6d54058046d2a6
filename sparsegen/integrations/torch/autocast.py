"""Operands under autocast: layers cast them as PyTorch's own do."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T", Tensor, Tensor | None)


def cast_like_dense(operand: T, device: torch.device) -> T:
    """An operand in the dtype that autocast asks for on a device; without autocast, and of float64, as it is."""
    if operand is None or operand.dtype == torch.float64 or not torch.is_autocast_enabled(device.type):
        return operand
    return operand.to(torch.get_autocast_dtype(device.type))
