"""Sums of a tensor's columns: the gradient of a bias, by a kernel that starts while the product before it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.direct import DirectOperator
from sparsegen.integrations.torch.pattern import DTYPES, kernel_device
from sparsegen.integrations.torch.prepared import aligned
from sparsegen.kernels.base import Device
from sparsegen.operators import DType
from sparsegen.plan.column_sums import bind_column_sums
from sparsegen.plan.executors import made_here, shared_executor

# Of a matrix of more bytes, which comes from memory, PyTorch's kernel reads longer parts of rows: a step of 4096³ in
# float16 took 14 µs longer with this one on an H100, and 3 to 5 µs less at 1024³ and 2048³.
MOST_BYTES = 16 << 20


class _Launches(threading.local):
    """Of the calling thread; graphs may hold any: none goes."""

    def __init__(self) -> None:
        self.known: dict[tuple[Device, int, tuple[int, int], DType], Callable[..., None]] = {}

    def of(self, device: Device, shape: tuple[int, int], dtype: DType) -> Callable[..., None]:
        key = device, device.index, shape, dtype
        if key not in self.known:
            executor = shared_executor(device)
            self.known[key] = made_here(executor, partial(bind_column_sums, executor, shape, dtype))
        return self.known[key]


_here = _Launches()


def _added(x: Tensor) -> Tensor:
    device = kernel_device(x)
    if device is None or x.numel() == 0 or x.nbytes > MOST_BYTES:
        return x.sum(0)
    x = aligned(x)
    sums = x.new_empty(x.shape[1])
    stream = int(torch.cuda.current_stream(x.device).cuda_stream) if x.is_cuda else 0
    launch = _here.of(device, (x.shape[0], x.shape[1]), DTYPES[x.dtype])
    launch(stream, x.data_ptr(), sums.data_ptr())
    return sums


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.rows = inputs[0].shape[0]


def _backward(ctx: Any, ds: Tensor) -> Tensor:
    return ds.expand(ctx.rows, -1)


column_sums = DirectOperator(
    "column_sums",
    "(Tensor x) -> Tensor",
    _added,
    fake=lambda x: x.new_empty(x.shape[1]),
    tensors=1,
    backward=_backward,
    remember=_remember,
)
"""The sums of the columns of a matrix, in its dtype; added in float32."""
