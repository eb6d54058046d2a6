"""Types in which PyTorch computes in the place of kernels: float32 and float64."""

from __future__ import annotations

import torch
from torch import Tensor

WIDE = (torch.float32, torch.float64)  # types that PyTorch's sparse product takes


def widened(tensor: Tensor) -> Tensor:
    """The tensor without its gradient, 16-bit numbers as float32."""
    return tensor.detach().to(tensor.dtype if tensor.dtype in WIDE else torch.float32)
