"""Masked convolutions of images in an order that is slow to read: copies with channels innermost, and results back.

The copies read and write what live blocks need alone; cuDNN copies whole images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.copied_operands import are_worth_more, is_faster_copied
from sparsegen.integrations.torch.calls.launches import Result
from sparsegen.integrations.torch.convolution.conv_problem import layout_of
from sparsegen.integrations.torch.convolution.image_copies import (
    ImageCopy,
    outputs_of,
    pixels_of_outputs,
)
from sparsegen.kernels.base import Device
from sparsegen.kernels.convolution.masked_convolution import parted_outputs_us
from sparsegen.operators import DType, ImageLayout, MaskedConv2dProblem, MaskOf, Rest
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.image_orders import VECTOR, Reading, Reordered
from sparsegen.system.integers import round_up

Launch = Callable[..., Tensor]
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor]  # x, the weight, a bias, and the mask's words


def with_channels_last(problem: MaskedConv2dProblem, device: Device | None) -> MaskedConv2dProblem | None:
    """Returns the convolution with channels innermost, as many as vectors divide, that takes a problem's place.

    Where its result is copied too it may have as many filters as vectors divide: kernels store single elements slowly.
    None where the problem's own kernel reads whole vectors, was measured on the device, or should take no longer than
    the copies and that convolution together.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    p = problem
    channels = round_up(p.channels, VECTOR)
    if device is None or p.dtype is DType.FLOAT32 or (p.channels != channels and p.groups.count > 1):
        return None
    if not p.layout.has_planes and p.channels == channels:
        return None
    only_live = p.layout.has_planes and p.mask_of is MaskOf.OUTPUT
    copied = replace(p, layout=ImageLayout.NHWC, channels=channels, rest=Rest.KEPT if only_live else p.rest)
    copies_us = _Copies.of(p, copied).expected_us(p, device)
    if p.layout.has_planes and p.groups.count == 1:
        wider = replace(copied, filters=round_up(p.filters, VECTOR))
        wider_us = _Copies.of(p, wider).expected_us(p, device)
        if are_worth_more(copies_us, wider_us, parted_outputs_us(p, p.density.share, device)):
            copied, copies_us = wider, wider_us
    return copied if is_faster_copied(p, copied, device, copies_us) else None


@dataclass(frozen=True, slots=True)
class _Copies:
    """The copies of a convolution.

    Attributes:
        filters: the copy of filters that lie in planes, if they get more channels or others beside them; else they are
            taken as any kernel takes them.
        bias: the copy of a bias for those filters.
        result: the copy of a result to planes.
    """

    images: Reordered
    filters: Reordered | None
    bias: Reordered | None
    result: Reordered | None

    @classmethod
    def of(cls, problem: MaskedConv2dProblem, copied: MaskedConv2dProblem) -> _Copies:
        p, size = problem, problem.filter_size
        is_of_input = p.mask_of.is_of_input
        blocks = Reading(p.height, p.mask_block.rows), Reading(p.width, p.mask_block.columns)
        needed = blocks if is_of_input else pixels_of_outputs(p)
        shape, window = (
            (p.batch, p.height, p.width, p.channels),
            (p.filters, size.rows, size.columns, p.channels),
        )
        out, beyond = (p.batch, p.out_height, p.out_width, p.filters), copied.filters - p.filters
        live = None if is_of_input else outputs_of(p)
        planes, pixels = ImageLayout.NCHW, ImageLayout.NHWC
        grows = beyond or p.channels != copied.channels
        filters = Reordered(window, planes, pixels) if grows else None
        bias = Reordered((1, 1, 1, p.filters), pixels, pixels) if beyond and p.epilogue.has_bias else None
        result = Reordered(out, pixels, planes, live, beyond=beyond) if p.layout.has_planes else None
        images = Reordered(shape, p.layout, pixels, needed, fills=p.mask_of is MaskOf.INPUT)
        return cls(images, filters, bias, result)

    def expected_us(self, problem: MaskedConv2dProblem, device: Device) -> float:
        """Microseconds of all copies."""
        copies = self.images, self.filters, self.bias, self.result
        return sum(copy.expected_us(device, problem.density.share) for copy in copies if copy is not None)


class ChannelsLastConvolution:
    """A convolution by copies, for tensors of one kind."""

    def __init__(
        self,
        problem: MaskedConv2dProblem,
        copied: MaskedConv2dProblem,
        tensors: Tensors,
        convolve: Callable[[Tensors, Result | None], Launch],
    ) -> None:
        """
        Args:
            copied: what `with_channels_last` gave for the problem.
            tensors: the first call's.
            convolve: makes the launch of that convolution for tensors like these, and a result that it may be given
                memory for.
        """
        x, weight, bias, words = tensors
        copies = _Copies.of(problem, copied)
        filters = copies.filters and replace(copies.filters, source=layout_of(weight))
        self._images = ImageCopy(copies.images, x)
        self._filters = ImageCopy(filters, weight, room=copied.filters) if filters else None
        self._bias = ImageCopy(copies.bias, x) if copies.bias else None
        self._result = ImageCopy(copies.result, x) if copies.result else None
        p, found = copied, Result(copied.result(0).shape)
        pixels = p.batch, p.out_height, p.out_width, p.filters
        self._empty = empty_tensors(torch, pixels, x.dtype, x.device)
        filters_like = self._filters.empty() if self._filters else weight
        bias_like = self._bias.empty().flatten() if self._bias else bias
        like = self._images.empty(), filters_like, bias_like, words
        self._convolve = convolve(like, found if self._result else None)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor) -> Tensor:
        """The convolution, in x's memory format."""
        filters = weight if self._filters is None else self._filters(weight, words)
        if self._bias is not None and bias is not None:
            bias = self._bias(bias.reshape(1, -1, 1, 1), words).flatten()
        images = self._images(x, words)
        if self._result is None:
            return self._convolve(images, filters, bias, words)
        found = self._empty()
        self._convolve(images, filters, bias, words, out=found)
        return self._result(found.permute(0, 3, 1, 2), words)
