"""Zeros over the pixels of images that lie in dead blocks, where they lie or in a copy, by one launch of ours."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.convolution.conv_problem import Side, layout_of, memory_format, zero_outside
from sparsegen.plan.dead_pixels import VECTOR_BYTES, DeadPixels, bind_dead_pixels
from sparsegen.plan.executors import shared_executor

_launches = PlainLaunches(bind_dead_pixels)


def zeroed(images: Tensor, mask: Tensor, block: Side) -> Tensor:
    """Images with zeros outside of a mask's blocks: themselves, or by PyTorch where no kernel of ours runs.

    Args:
        images: images × channels × height × width; nothing else refers to them, and no gradient needs them.
        mask: bools, images × rows × columns of blocks.
    """
    images = images.contiguous(memory_format=memory_format(images))
    return _written(images, images, mask, block)


def zeroed_copy(images: Tensor, mask: Tensor, block: Side) -> Tensor:
    """The same in new memory; dead blocks are not read."""
    order = memory_format(images)
    images = images.contiguous(memory_format=order)
    if images.data_ptr() % VECTOR_BYTES:  # a slice
        images = images.clone(memory_format=order)
    return _written(images, torch.empty_like(images, memory_format=order), mask, block)


def _written(images: Tensor, into: Tensor, mask: Tensor, block: Side) -> Tensor:
    """Writes to a tensor, which may be the images."""
    device = kernel_device(images)
    if device is None or not images.numel():
        return zero_outside(images, mask, block)
    count, channels, rows, columns = images.shape
    what = DeadPixels((count, rows, columns, channels), layout_of(images), images.itemsize, block)
    if is_capturing(images) and not what.is_loaded(shared_executor(device)):  # nothing can be loaded
        return zero_outside(images, mask, block)
    blocks, source = mask.contiguous(), 0 if into is images else images.data_ptr()
    _launches.of(device, what)(stream_of(images), blocks.data_ptr(), source, into.data_ptr())
    return into
