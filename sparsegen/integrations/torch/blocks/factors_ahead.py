"""Factors by which blocks are dropped, drawn for several steps in one launch.

A launch in each short step would take the host longer than all of these take the device. In training, a layer's masks
have numbers that are equally far apart, so that those of the next steps are known; whoever comes with others, as after
a new seed, has his own drawn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_states import Numbers
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.integrations.torch.calls.prepared import VECTOR_BYTES
from sparsegen.kernels.base import Device
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.block_dropout import bind_block_dropout
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.own_launch import OwnBinding

MOST_STEPS = 16  # that are drawn at once
# Bytes of one step's factors, times the square of the steps: what waits grows slower than the tensors, to 17 MB.
BYTES = 1 << 25


class FactorsAhead:
    """Factors for tensors of one kind: 0 where a block is dropped, elsewhere 1 over the share that is left."""

    def __init__(self, like: Tensor, device: Device, p: float, block: tuple[int, int]) -> None:
        """
        Args:
            like: any number of leading dimensions, which together are rows.
            device: where it lies.
        """
        columns, size = like.shape[-1], like.numel() * like.itemsize
        what = (like.numel() // columns, columns), block, p, DTYPES[like.dtype]
        steps = 1 if size % VECTOR_BYTES else max(1, min(MOST_STEPS, math.isqrt(BYTES // size)))
        self._draws = {
            count: (
                OwnBinding(shared_executor(device), bind_block_dropout, *what, count).bound,
                empty_tensors(torch, (count, *like.shape), like.dtype, like.device),
            )
            for count in (1, steps)
        }
        self._steps, self._stream = steps, current_stream(like)
        self._ready: dict[tuple[int, int, int], Tensor] = {}  # by seed, step and stream
        self._last = self._apart = 0

    def __call__(self, numbers: Numbers) -> Tensor:
        """The factors of the mask that a seed and a step name, on the current stream."""
        key = *numbers, self._stream()
        found = self._ready.get(key)
        return self._drawn(*key) if found is None else found

    def _drawn(self, seed: int, step: int, stream: int) -> Tensor:
        """The same, drawn now; with those of the steps to come once two are as far apart as the two before."""
        apart = step - self._last
        count = self._steps if apart == self._apart and apart > 0 else 1
        bound, empty = self._draws[count]
        factors = empty()
        bound()(stream, 0, seed, step, apart if count > 1 else 0, 0, factors.data_ptr())
        names = [(seed, step + ahead * apart, stream) for ahead in range(count)]
        self._ready = dict(zip(names, factors.unbind(), strict=True))
        self._last, self._apart = names[-1][1], apart
        return self._ready[names[0]]
