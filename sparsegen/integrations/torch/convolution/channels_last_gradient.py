"""Gradients by the weights of masked convolutions of images in an order that is slow to read: by copies of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.copied_operands import is_faster_copied
from sparsegen.integrations.torch.convolution.conv_problem import layout_of
from sparsegen.integrations.torch.convolution.image_copies import (
    ImageCopy,
    outputs_of,
    pixels_of_outputs,
)
from sparsegen.kernels.base import Device
from sparsegen.operators import DType, ImageLayout, MaskedConv2dWeightsProblem
from sparsegen.plan.image_orders import ITEM_BYTES, VECTOR, Reordered
from sparsegen.system.integers import round_up

Launch = Callable[..., Tensor]
# Time of PyTorch's copy to another memory order over that of one in the same order: with 168 and 355 channels on an
# H200 convolutions that were copied so took 4.8 and 6.5 times it longer.
WHOLE_COPY = 5.0


def gradient_with_channels_last(
    problem: MaskedConv2dWeightsProblem, x: Tensor, dy: Tensor, device: Device
) -> MaskedConv2dWeightsProblem | None:
    """Returns the gradient with as many channels and filters as vectors divide, that takes a problem's place.

    None where x and dy lie as kernels read whole vectors, where the gradient was measured on the device, or should take
    no longer than the copies and that gradient together.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    p = problem
    copied = replace(p, channels=round_up(p.channels, VECTOR), filters=round_up(p.filters, VECTOR))
    have_planes = [layout_of(images).has_planes for images in (x, dy)]
    if (
        p.dtype is DType.FLOAT32
        or (copied != p and p.groups.count > 1)
        or (copied == p and not any(have_planes))
    ):
        return None
    spared, rates = 0.0, device.expected_rates
    for images, is_copied in zip((x, dy), have_planes, strict=True):
        if is_copied:
            spared += rates.launch_us + WHOLE_COPY * 2 * images.numel() * ITEM_BYTES / rates.copy_bytes_per_us
    copies = _copies(p, copied, x, dy)
    copies_us = sum(copy.expected_us(device, p.density.share) for copy in copies if copy is not None)
    return copied if is_faster_copied(p, copied, device, copies_us, spared) else None


def _copies(
    problem: MaskedConv2dWeightsProblem, copied: MaskedConv2dWeightsProblem, x: Tensor, dy: Tensor
) -> tuple[Reordered | None, Reordered | None]:
    """The copies of x and dy: each if it lies in planes, or gets more channels.

    Units at an edge of a result, or of a block, multiply pixels of x that no live output reads, by zeros: so these are
    zeros too.
    """
    p, to = problem, ImageLayout.NHWC
    images = Reordered(
        (p.images, p.height, p.width, p.channels), layout_of(x), to, pixels_of_outputs(p), fills=True
    )
    gradients = Reordered((p.images, p.out_height, p.out_width, p.filters), layout_of(dy), to, outputs_of(p))
    return (
        images if images.source.has_planes or p.channels != copied.channels else None,
        gradients if gradients.source.has_planes or p.filters != copied.filters else None,
    )


class ChannelsLastGradient:
    """A gradient by the weights by copies, for tensors of one kind: x, dy and the mask's words."""

    def __init__(
        self,
        problem: MaskedConv2dWeightsProblem,
        copied: MaskedConv2dWeightsProblem,
        tensors: tuple[Tensor, Tensor, Tensor],
        multiply: Callable[[tuple[Tensor, Tensor, Tensor]], Launch],
    ) -> None:
        """
        Args:
            copied: what `gradient_with_channels_last` gave for the problem.
            tensors: the first call's.
            multiply: makes the launch of that gradient for tensors like these.
        """
        x, dy, words = tensors
        images, gradients = _copies(problem, copied, x, dy)
        self._images = images and ImageCopy(images, x)
        self._gradients = gradients and ImageCopy(gradients, dy)
        like = (
            self._images.empty() if self._images else x,
            self._gradients.empty() if self._gradients else dy,
            words,
        )
        self._multiply = multiply(like)
        self._filters, self._channels = problem.filters, problem.channels // problem.groups.count
        self._is_larger = copied != problem

    def __call__(self, x: Tensor, dy: Tensor, words: Tensor) -> Tensor:
        """The gradient: filters × channels of a group × rows × columns, in `torch.channels_last`."""
        images = self._images(x, words) if self._images else x
        gradients = self._gradients(dy, words) if self._gradients else dy
        found = self._multiply(images, gradients, words)
        if not self._is_larger:
            return found
        own = found[: self._filters, : self._channels]
        return own.contiguous(memory_format=torch.channels_last)
