"""Masks of spatial blocks and their words: packed where they lie, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import may_run_at_once
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.mask_words import MaskPacking


@dataclass(frozen=True, slots=True)
class PackedMask:
    """A mask with its words, which several layers take without packing it again.

    Attributes:
        blocks: bools, images × rows × columns of blocks.
        words: words of the mask.
        is_earlier: the words, and the layer's filters and bias, were written before the kernel began that comes before
            the layer's on the stream; then that of the layer reads them while the other still ends.
    """

    blocks: Tensor
    words: Tensor
    is_earlier: bool = False

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
