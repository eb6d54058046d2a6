"""Masks of spatial blocks and their words: packed, and made of those before a layer, where they lie, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import may_run_at_once
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, current_stream, stream_of
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.convolution.conv_problem import Side
from sparsegen.matrix.axis_reach import AxisReach
from sparsegen.matrix.spatial_mask import Reach, dilate, resize, words_of
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.mask_words import MaskPacking
from sparsegen.plan.reached_mask import ReachedMask, bind_reached_mask

_reaching = PlainLaunches(bind_reached_mask)


@dataclass(frozen=True, slots=True)
class PackedMask:
    """A mask with its words, which several layers take without packing it again.

    Attributes:
        blocks: bools, images × rows × columns of blocks.
        words: words of the mask.
        is_earlier: the words, and the layer's filters and bias, were written before the kernel began that comes before
            the layer's on the stream; then that of the layer reads them while the other still ends.
        is_whole: all blocks are live: a dense convolution needs no zeros.
    """

    blocks: Tensor
    words: Tensor
    is_earlier: bool = False
    is_whole: bool = False

    @classmethod
    def of(cls, mask: Tensor) -> PackedMask:
        """A mask with its words, as `sparsegen.masks.words_of` makes them.

        Args:
            mask: bools, images × rows × columns of blocks.
        """
        if not may_run_at_once(mask):
            return cls(mask, words_of(mask))
        pack = calls.target(packing_of, (mask,), packing_of, (mask,))
        return cls(mask, pack(mask))

    @classmethod
    def behind(cls, mask: Tensor, size: Side, block: Side, reach: Reach) -> PackedMask:
        """The mask of what a convolution or a pool makes of images, of blocks that read a live one; see `dilate`.

        Args:
            mask: bools, as of `blocks`.
            size: rows and columns of the images.
            block: rows and columns of a block, of this mask and of the result's.
        """
        made = _launched(mask, _behind, size, block, reach)
        return cls.of(dilate(mask, size, block, reach)) if made is None else made

    @classmethod
    def resized(cls, mask: Tensor, size: Side, block: Side, out: Side, margin: int = 0) -> PackedMask:
        """The mask of the same scene in images of another size, in blocks of as many pixels; see `resize`."""
        made = _launched(mask, _resized, size, block, out, margin)
        return cls.of(resize(mask, size, block, out, margin=margin)) if made is None else made


@lru_cache(maxsize=256)
def _behind(images: int, size: Side, block: Side, reach: Reach) -> ReachedMask | None:
    """The launch of `PackedMask.behind`; None where what blocks read is no interval."""
    down, across = (AxisReach.of_window(i, size, block, reach) for i in range(2))
    return None if down is None or across is None else ReachedMask(images, down, across)


@lru_cache(maxsize=256)
def _resized(images: int, size: Side, block: Side, out: Side, margin: int) -> ReachedMask:
    """The launch of `PackedMask.resized`."""
    down, across = (AxisReach.of_scene(size[i], block[i], out[i], margin) for i in range(2))
    return ReachedMask(images, down, across)


def _launched(mask: Tensor, of: Callable[..., ReachedMask | None], *geometry: Any) -> PackedMask | None:
    """Blocks that reach live ones, and their words, by one launch; None where no kernel of ours can run.

    Args:
        of: makes the launch of a number of images and a geometry.
    """
    device = kernel_device_of(mask.device)
    if device is None or not mask.numel() or not may_run_at_once(mask):
        return None
    what = of(len(mask), *geometry)
    if what is None or (is_capturing(mask) and not what.is_loaded(shared_executor(device))):
        return None
    live = mask.contiguous()
    blocks, words = live.new_empty(what.shape), live.new_empty(what.word_shape, dtype=torch.int64)
    _reaching.of(device, what)(stream_of(live), live.data_ptr(), blocks.data_ptr(), words.data_ptr())
    return PackedMask(blocks, words)


def packing_of(mask: Tensor) -> Callable[[Tensor], Tensor]:
    """Returns the function that packs masks like this one: a launch on a device of ours, else PyTorch's operations."""
    device = kernel_device_of(mask.device)
    if device is None or not mask.numel():
        return words_of
    images, rows, columns = mask.shape
    packing = MaskPacking(shared_executor(device), images * rows, columns)
    shape = images * rows, packing.words // (images * rows)
    empty = empty_tensors(torch, shape, torch.int64, mask.device)
    lies_so, bound, stream = mask.is_contiguous(), packing.bound, current_stream(mask)

    def pack(mask: Tensor) -> Tensor:
        given, words = mask if lies_so else mask.contiguous(), empty()
        bound()(stream(), given.data_ptr(), words.data_ptr())
        result: Tensor = words
        return result

    return pack
