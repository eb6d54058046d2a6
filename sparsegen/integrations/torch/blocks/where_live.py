"""Live blocks of tensors by a packed mask, in one launch that reads nothing dead; by PyTorch where no kernel runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_launches import blocks_of, expanded
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.integrations.torch.calls.prepared import VECTOR_BYTES, is_capturing
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask import grid
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.where_live import Dead, WhereLive, bind_where_live

_launches = PlainLaunches(bind_where_live)
_REST = VECTOR_BYTES - 1
_Launch = Callable[..., None]


class _Bound(threading.local):
    """Launches of the calling thread by what may differ between calls: bound ones belong to one thread."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[int, bool, Dead], _Launch] = {}


class LiveBlocks:
    """The live blocks of matrices of one shape and dtype.

    A CUDA graph captures the launch if its kernel was loaded before, as by a call like it, and PyTorch's own operations
    if not: nothing can be loaded then.
    """

    def __init__(self, shape: tuple[int, int], block: tuple[int, int], device: Device | None) -> None:
        """
        Args:
            shape, block: sides of a matrix and of a block, one at the least.
            device: where our kernels run for them; None for PyTorch's own operations.
        """
        self._shape, self._block, self._device = shape, block, device
        self._bound = _Bound()

    def of(self, x: Tensor, words: Tensor) -> Tensor:
        """A new matrix: X's live blocks, and zeros."""
        if x.stride(1) != 1:
            x = x.contiguous()
        return self._written(torch.empty(self._shape, dtype=x.dtype, device=x.device), x, words, Dead.ZERO)

    def without_dead(self, y: Tensor, words: Tensor) -> Tensor:
        """Y, contiguous, whose dead blocks become zeros where it lies."""
        return self._written(y, None, words, Dead.ZERO)

    def into(self, out: Tensor, x: Tensor, words: Tensor) -> Tensor:
        """``out``, whose live blocks become those of X, both contiguous."""
        return self._written(out, x, words, Dead.KEPT)

    def _written(self, y: Tensor, x: Tensor | None, words: Tensor, dead: Dead) -> Tensor:
        to = y.data_ptr()
        source, step = (0, self._shape[1]) if x is None else (x.data_ptr(), x.stride(0))
        kind = step, not (source | to) & _REST, dead
        launch = self._bound.by_kind.get(kind) or self._launch(y, *kind)
        if launch is None:
            live = expanded(blocks_of(words, grid(self._shape, self._block)), self._block, self._shape)
            return y.copy_(torch.where(live, y if x is None else x, 0 if dead is Dead.ZERO else y))
        launch(stream_of(y), words.data_ptr(), source, to)
        return y

    def _launch(self, y: Tensor, step: int, is_aligned: bool, dead: Dead) -> _Launch | None:
        """The launch; None where PyTorch's own operations do it."""
        if self._device is None:
            return None
        strides = step, self._shape[1]
        what = WhereLive(self._shape, self._block, DTYPES[y.dtype], strides, is_aligned, dead=dead)
        if is_capturing(y) and not what.is_loaded(shared_executor(self._device)):
            return None
        found = self._bound.by_kind[step, is_aligned, dead] = _launches.of(self._device, what)
        return found
