"""Live blocks of PyTorch's tensors by a packed mask, in one launch that reads nothing dead."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from sparsegen.errors import LaunchError
from sparsegen.kernels.base import Device
from sparsegen.operators import DType
from sparsegen.plan.arrays import current_stream_of
from sparsegen.plan.executors import made_here, shared_executor
from sparsegen.plan.where_live import VECTOR_BYTES, Dead, WhereLive, bind_where_live
from sparsegen.system.cuda_graphs import is_capturing

Launched = Callable[..., None]
Tensor = Any  # PyTorch is imported by whoever has one


class _Bound(threading.local):
    """Launches of the calling thread by what may differ between calls: bound ones belong to one thread."""

    def __init__(self) -> None:
        self.by_kind: dict[tuple[int, int, Dead], Launched] = {}


class LiveBlocks:
    """The live blocks of matrices of one shape and dtype.

    A CUDA graph captures the launch if its kernel was loaded before, as by a call like it: nothing can be loaded then.

    Raises:
        LaunchError: a CUDA graph captures the first call.
        CompileError, DeviceUnavailableError: the kernel cannot be compiled.
    """

    def __init__(self, shape: tuple[int, int], block: tuple[int, int], device: Device | None) -> None:
        """
        Args:
            shape, block: sides of a matrix and of a block, one at the least.
            device: where our kernels run for them; None if none does (`elsewhere`).
        """
        self._shape, self._block, self._device = shape, block, device
        self._bound = _Bound()
        torch = sys.modules["torch"]  # whose tensors come
        self._like = partial(torch.empty_like, memory_format=torch.contiguous_format)
        self._stream = current_stream_of(torch)

    def of(self, x: Tensor, words: Tensor) -> Tensor:
        """A new matrix: X's live blocks, and zeros."""
        if x.stride(1) != 1:
            x = x.contiguous()
        return self._written(self._like(x), x, words, Dead.ZERO)

    def without_dead(self, y: Tensor, words: Tensor) -> Tensor:
        """Y, contiguous, whose dead blocks become zeros where it lies."""
        return self._written(y, None, words, Dead.ZERO)

    def into(self, out: Tensor, x: Tensor, words: Tensor) -> Tensor:
        """``out``, whose live blocks become those of X, both contiguous."""
        return self._written(out, x, words, Dead.KEPT)

    def elsewhere(self, y: Tensor, x: Tensor | None, words: Tensor, dead: Dead) -> Tensor:
        """Writes to Y where no kernel of ours runs."""
        raise LaunchError("call the product once before a CUDA graph is captured: it loads a kernel")

    def _written(self, y: Tensor, x: Tensor | None, words: Tensor, dead: Dead) -> Tensor:
        to = y.data_ptr()
        source, step = (0, self._shape[1]) if x is None else (x.data_ptr(), x.stride(0))
        places = source | to | VECTOR_BYTES
        kind = step, places & -places, dead  # the lowest bit: what both are multiples of
        launch = self._bound.by_kind.get(kind) or self._launch(y, *kind)
        if launch is None:
            return self.elsewhere(y, x, words, dead)
        launch(self._stream(y.get_device()) if y.is_cuda else 0, words.data_ptr(), source, to)
        return y

    def _launch(self, y: Tensor, step: int, aligned: int, dead: Dead) -> Launched | None:
        """The launch; None where there is none."""
        if self._device is None:
            return None
        dtype = DType(str(y.dtype).removeprefix("torch."))
        what = WhereLive(self._shape, self._block, dtype, (step, self._shape[1]), aligned, dead=dead)
        executor = shared_executor(self._device)
        if y.is_cuda and is_capturing() and not what.is_loaded(executor):
            return None
        found = made_here(executor, lambda: bind_where_live(executor, what))
        self._bound.by_kind[step, aligned, dead] = found
        return found
