"""Sums of a tensor's columns: the gradient of a bias, by a kernel that starts while the product before it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.direct import Context, DirectOperator
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.integrations.torch.calls.prepared import aligned
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.column_sums import bind_column_sums
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.own_launch import OwnBinding

# For a matrix of more bytes, which comes from memory, PyTorch's kernel reads longer parts of rows: a step of 4096³ in
# float16 took 14 µs longer with this one on an H100, and 3 to 5 µs less at 1024³ and 2048³.
MOST_BYTES = 16 << 20


def _launch(x: Tensor) -> Callable[[Tensor], Tensor]:
    device = kernel_device(x)
    if device is None or x.numel() == 0 or x.nbytes > MOST_BYTES:
        return lambda x: x.sum(0)
    own = OwnBinding(shared_executor(device), bind_column_sums, (x.shape[0], x.shape[1]), DTYPES[x.dtype])
    bound, stream = own.bound, current_stream(x)
    empty = empty_tensors(torch, (x.shape[1],), x.dtype, x.device)

    def added(x: Tensor) -> Tensor:
        x, sums = aligned(x), empty()
        bound()(stream(), x.data_ptr(), sums.data_ptr())
        result: Tensor = sums
        return result

    return added


def _remember(ctx: Context, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rows = inputs[0].shape[0]


def _backward(ctx: Context, ds: Tensor) -> Tensor:
    return ds.expand(ctx.rows, -1)


column_sums = DirectOperator(
    "column_sums",
    "(Tensor x) -> Tensor",
    calls.of(1, _launch),
    fake=lambda x: x.new_empty(x.shape[1]),
    tensors=1,
    backward=_backward,
    remember=_remember,
)
"""The sums of the columns of a matrix, in its dtype; added in float32."""
