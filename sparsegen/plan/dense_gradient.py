"""The dense gradient of a masked convolution by its weights in a variant's place, by PyTorch and cuDNN."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sparsegen.dispatch.chosen import Choice
from sparsegen.kernels.base import Device
from sparsegen.operators import ImageLayout, MaskedConv2dWeightsProblem
from sparsegen.plan.arrays import current_stream_of
from sparsegen.plan.cudnn_search import CudnnSearch
from sparsegen.plan.dead_pixels import VECTOR_BYTES, DeadPixels, bind_dead_pixels
from sparsegen.plan.dense_launcher import DenseCallsWithMask
from sparsegen.plan.executors import made_here, shared_executor
from sparsegen.system.cuda_graphs import is_capturing

Tensor = Any  # PyTorch is imported by whoever has one


class LivePixels:
    """Live blocks of the gradient of a convolution's result, and zeros, in new memory.

    A CUDA graph captures the launch if its kernel was loaded before, as by a call like it.
    """

    def __init__(self, problem: MaskedConv2dWeightsProblem, device: Device) -> None:
        """
        Args:
            device: where our kernels run for the tensors.
        """
        p = problem.forward
        block, shape = p.mask_block, (p.batch, p.out_height, p.out_width, p.filters)
        sides = block.rows, block.columns
        self._what = DeadPixels(shape, ImageLayout.NHWC, p.dtype.itemsize, sides, is_packed=True)
        self._device, self._bound = device, threading.local()
        self._torch = sys.modules["torch"]
        self._stream = current_stream_of(self._torch)

    def of(self, dy: Tensor, words: Tensor) -> Tensor:
        """A copy of dy, images × rows × columns × filters, with zeros outside of the mask's blocks."""
        if dy.data_ptr() % VECTOR_BYTES:  # a slice
            dy = dy.clone()
        made = self._torch.empty_like(dy)
        stream = self._stream(dy.get_device()) if dy.is_cuda else 0
        self._launch()(stream, words.data_ptr(), dy.data_ptr(), made.data_ptr())
        return made

    def _launch(self) -> Callable[..., None]:
        """The launch of the calling thread: bound ones belong to one."""
        found: Callable[..., None] | None = getattr(self._bound, "launch", None)
        if found is None:
            executor = shared_executor(self._device)
            found = self._bound.launch = made_here(executor, lambda: bind_dead_pixels(executor, self._what))
        return found


class DenseGradientLauncher(DenseCallsWithMask):
    """A `Launcher` of the dense gradient of a convolution by its weights, by the fastest algorithm of cuDNN."""

    def __init__(self, choice: Choice, device: Device, kept: Mapping[str, object]) -> None:
        """See `DenseCallsWithMask`."""
        super().__init__(choice, device, kept)
        problem = choice.problem
        assert isinstance(problem, MaskedConv2dWeightsProblem)
        self._problem, self._live = problem, LivePixels(problem, device)
        self._search = CudnnSearch(self._torch)

    def _computed(self, operands: Mapping[str, Any], out: Any) -> Any:
        with self._fastest_algorithms():
            return self._problem.dense_result(self._torch, self._live, operands, out)

    def _fastest_algorithms(self) -> AbstractContextManager[object]:
        """A context in which cuDNN searches, but in a graph that is captured, which a search would break off."""
        if self.device.backend != "cuda" or self._search.is_on() or is_capturing():
            return nullcontext()
        return self._search
