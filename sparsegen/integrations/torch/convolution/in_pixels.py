"""Masked convolutions of images in an order that is slow to read: copies with channels innermost, and results back.

The copies read and write what live blocks need alone; cuDNN copies whole images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.errors import NoVariantError
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.launches import Result
from sparsegen.kernels.base import Device
from sparsegen.operators import DType, ImageLayout, MaskedConv2dProblem, MaskOf, Rest
from sparsegen.plan.arrays import current_stream_of, empty_tensors
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.image_orders import VECTOR, Reading, Reordered, bind_reordered
from sparsegen.plan.own_launch import OwnBinding
from sparsegen.system.integers import round_up
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.shared_layers import shared_layers

Launch = Callable[..., Tensor]
_BY_VARIANT = DispatchOptions(dense=Dense.NEVER)
_MEASURED = How.PINNED, How.EXACT


def in_pixels(problem: MaskedConv2dProblem, device: Device | None) -> MaskedConv2dProblem | None:
    """Returns the convolution with channels innermost, as many as vectors divide, that takes a problem's place.

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
    try:
        other = _expected_us(_choice(copied, device), device)
        own = _choice(p, device)
    except NoVariantError:
        return None
    copies = sum(copy.expected_us(device, share) for copy, share in _Copies(p, copied).all)
    is_faster = own.how not in _MEASURED and other + copies < _expected_us(own, device)
    return copied if is_faster else None


def _choice(problem: MaskedConv2dProblem, device: Device) -> Choice:
    workload = Workload.of(problem, problem.without_pattern)
    return choose(workload, device, shared_layers(None), _BY_VARIANT)


def _expected_us(choice: Choice, device: Device) -> float:
    if choice.expected_us is not None:
        return choice.expected_us
    features = choice.problem.features(choice.problem.without_pattern)
    return choice.family.analytic_us(choice.problem, features, choice.config, device)


class _Copies:
    """The copies of a convolution: of its images, of filters with more channels, of a result in planes."""

    def __init__(self, problem: MaskedConv2dProblem, copied: MaskedConv2dProblem) -> None:
        p, size = problem, problem.filter_size
        is_of_input = p.mask_of.is_of_input
        reading = (
            Reading(p.height if is_of_input else p.out_height, p.mask_block.rows),
            Reading(p.width if is_of_input else p.out_width, p.mask_block.columns),
        )
        read = reading
        if not is_of_input:
            read = (
                replace(reading[0], reach=(size.rows - 1) * p.dilation.rows, padding=p.padding.rows,
                        stride=p.stride.rows),
                replace(reading[1], reach=(size.columns - 1) * p.dilation.columns, padding=p.padding.columns,
                        stride=p.stride.columns),
            )  # fmt: skip
        shape, fills = (p.batch, p.height, p.width, p.channels), p.mask_of is MaskOf.INPUT
        self.images = Reordered(shape, p.layout, ImageLayout.NHWC, read, fills)
        self.images_share = min(1.0, p.density.share * _spread(read[0]) * _spread(read[1]))
        # Filters of fewer channels; others are views, or copied as for any kernel.
        self.filters = (
            (p.filters, size.rows, size.columns, p.channels) if p.channels != copied.channels else None
        )
        out = p.batch, p.out_height, p.out_width, p.filters
        planes = Reordered(out, ImageLayout.NHWC, ImageLayout.NCHW, None if is_of_input else reading)
        self.result = planes if p.layout.has_planes else None
        self.result_share = 1.0 if is_of_input else p.density.share

    def of_filters(self, source: ImageLayout) -> Reordered | None:
        """The copy of filters that lie in this order; None if they need none."""
        return self.filters and Reordered(self.filters, source, ImageLayout.NHWC)

    @property
    def all(self) -> list[tuple[Reordered, float]]:
        """Every copy, with the share of its pixels that it reads."""
        found = [(self.images, self.images_share)]
        if (filters := self.of_filters(ImageLayout.NHWC)) is not None:
            found.append((filters, 1.0))
        return found if self.result is None else [*found, (self.result, self.result_share)]


def _spread(reading: Reading) -> float:
    """The pixels that a live block's outputs read, over the block's outputs."""
    return 1.0 + reading.reach / (reading.block * reading.stride)


class InPixels:
    """A convolution by copies, for tensors of one kind: x, the weight, a bias or None, and the mask's words."""

    def __init__(
        self,
        problem: MaskedConv2dProblem,
        copied: MaskedConv2dProblem,
        tensors: Sequence[Tensor | None],
        convolve: Callable[[tuple[Tensor | None, ...], Result | None], Launch],
    ) -> None:
        """
        Args:
            copied: what `in_pixels` gave for the problem.
            tensors: the first call's.
            convolve: makes the launch of that convolution for tensors like these, and a result that it may be given
                memory for.
        """
        x, weight, bias, words = tensors
        assert x is not None and weight is not None
        device = kernel_device(x)
        assert device is not None
        executor, copies = shared_executor(device), _Copies(problem, copied)
        p, dtype, where = problem, x.dtype, x.device

        def bound(what: Reordered | None) -> OwnBinding | None:
            if what is None:
                return None
            made = OwnBinding(executor, bind_reordered, what)
            made.bound()  # compiled and loaded, which no capture may do
            return made

        self._order = torch.contiguous_format if p.layout.has_planes else torch.channels_last
        self._weight_order = torch.contiguous_format if weight.is_contiguous() else torch.channels_last
        by_planes = ImageLayout.NCHW if weight.is_contiguous() else ImageLayout.NHWC
        self._images, self._filters = bound(copies.images), bound(copies.of_filters(by_planes))
        self._result = bound(copies.result)
        sides = p.batch, copied.channels, p.height, p.width
        self._new_images = empty_tensors(torch, sides, dtype, where, torch.channels_last)
        window = p.filters, copied.channels, p.filter_size.rows, p.filter_size.columns
        self._new_filters = empty_tensors(torch, window, dtype, where, torch.channels_last)
        out, found = (p.batch, p.filters, p.out_height, p.out_width), Result(copied.result(0).shape)
        self._new_result = empty_tensors(torch, out, dtype, where)
        self._new_found = empty_tensors(torch, found.shape, dtype, where)
        self._result_words = not p.mask_of.is_of_input
        self._index, self._stream = x.get_device(), current_stream_of(torch)
        filters = weight if self._filters is None else self._new_filters()
        tensors = self._new_images(), filters, bias, words
        self._convolve = convolve(tensors, None if self._result is None else found)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor) -> Tensor:
        """The convolution, in x's memory format."""
        stream = self._stream(self._index) if x.is_cuda else 0
        mask, filters = words.data_ptr(), weight
        assert self._images is not None
        if self._filters is not None:
            weight, filters = weight.contiguous(memory_format=self._weight_order), self._new_filters()
            self._filters.bound()(stream, 0, weight.data_ptr(), filters.data_ptr())
        x, images = x.contiguous(memory_format=self._order), self._new_images()
        self._images.bound()(stream, mask, x.data_ptr(), images.data_ptr())
        if self._result is None:
            return self._convolve(images, filters, bias, words)
        found = self._convolve(images, filters, bias, words, out=self._new_found())
        result: Tensor = self._new_result()
        self._result.bound()(stream, mask if self._result_words else 0, found.data_ptr(), result.data_ptr())
        return result
