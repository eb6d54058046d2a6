"""Launches of the kernels that make masks of blocks, on tensors; without a device of ours by NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from sparsegen.integrations.torch.pattern import kernel_device_of
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask import BlockMaskLayout, packed
from sparsegen.matrix.block_mask_draw import MaskDraw, draw_blocks
from sparsegen.plan.block_masks import BlockMaskMaker, Given
from sparsegen.plan.executors import shared_executor

Key = tuple[Device, int, BlockMaskLayout]


class _Makers(threading.local):
    """Of the calling thread: a maker for each device and layout, with its launches. Graphs may hold any: none goes."""

    def __init__(self) -> None:
        self.makers: dict[Key, BlockMaskMaker] = {}
        self.launches: dict[tuple[Key, MaskDraw | Given], Callable[..., None]] = {}

    def launch(self, device: Device, layout: BlockMaskLayout, what: MaskDraw | Given) -> Callable[..., None]:
        key = device, device.index, layout
        if (key, what) not in self.launches:
            executor = shared_executor(device)
            with executor.entered():
                if key not in self.makers:
                    self.makers[key] = BlockMaskMaker(layout, executor)
                executor.activate()
                maker = self.makers[key]
                bound = maker.bind_draw(what) if isinstance(what, MaskDraw) else maker.bind_finish(what)
            self.launches[key, what] = bound
        return self.launches[key, what]


_here = _Makers()


def draw_on(state: Tensor, layout: BlockMaskLayout, draw: MaskDraw) -> Tensor:
    """The buffer of the mask that a state names, where the state lies; one is added to its step."""
    device = kernel_device_of(state.device)
    if device is None:
        seed, step = (int(word) & (1 << 64) - 1 for word in state.tolist())
        words = torch.from_numpy(packed(draw_blocks(layout, draw, seed, step))).to(state.device)
        state[1] += 1
        return words
    words = torch.empty(layout.words, dtype=torch.uint64, device=state.device)
    _here.launch(device, layout, draw)(_stream(state), state.data_ptr(), words.data_ptr())
    return words


def pack_on(live: Tensor) -> Tensor:
    """The buffer of the mask of these live blocks (bools), where they lie."""
    layout = BlockMaskLayout(*live.shape)
    device = kernel_device_of(live.device)
    if device is None:
        return torch.from_numpy(packed(live.cpu().numpy())).to(live.device)
    live = live.contiguous()
    words = torch.empty(layout.words, dtype=torch.uint64, device=live.device)
    _here.launch(device, layout, Given.BOOLS)(_stream(live), live.data_ptr(), words.data_ptr())
    return words


def _stream(tensor: Tensor) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream) if tensor.is_cuda else 0
