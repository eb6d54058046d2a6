"""Sums of a tensor's columns: the gradient of a bias, by a kernel that starts while the product before it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.direct import Context
from sparsegen.integrations.torch.calls.launched_operator import LaunchedOperator
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.integrations.torch.calls.prepared import aligned
from sparsegen.kernels.base import Device
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.column_sums import bind_column_sums
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.own_launch import OwnBinding

# For a matrix of more bytes, which comes from memory, PyTorch's kernel reads longer parts of rows: a step of 4096³ in
# float16 took 14 µs longer with this one on an H100, and 3 to 5 µs less at 1024³ and 2048³.
MOST_BYTES = 16 << 20


class ColumnSums:
    """The sums of the columns of matrices of one kind, by one launch."""

    __slots__ = ("_bound", "_empty", "_stream")

    def __init__(self, device: Device, like: Tensor) -> None:
        own = OwnBinding(shared_executor(device), bind_column_sums, tuple(like.shape), DTYPES[like.dtype])
        self._bound, self._stream = own.bound, current_stream(like)
        self._empty = empty_tensors(torch, (like.shape[1],), like.dtype, like.device)

    def __call__(self, x: Tensor) -> Tensor:
        """The sums for a matrix, or for a contiguous tensor of more dimensions, which is taken as one."""
        x, sums = aligned(x), self._empty()
        self._bound()(self._stream(), x.data_ptr(), sums.data_ptr())
        result: Tensor = sums
        return result


def sums_like(x: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns the function that adds up the columns of matrices like this one; see `ColumnSums`."""
    device = kernel_device(x)
    if device is None or x.numel() == 0 or x.nbytes > MOST_BYTES:
        return _by_pytorch
    return ColumnSums(device, x)


def _by_pytorch(x: Tensor) -> Tensor:
    return (x if x.dim() == 2 else x.view(-1, x.shape[-1])).sum(0)


def _remember(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rows = inputs[0].shape[0]


def _backward(ctx: Context, ds: Tensor) -> Tensor:
    return ds.expand(ctx.rows, -1)


column_sums = LaunchedOperator(
    "column_sums",
    "(Tensor x) -> Tensor",
    sums_like,
    fake=lambda x: x.new_empty(x.shape[1]),
    tensors=1,
    backward=_backward,
    remember=_remember,
)
"""The sums of the columns of a matrix, in its dtype; added in float32."""
