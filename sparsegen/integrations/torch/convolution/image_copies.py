"""Copies of tensors of images to another memory order, and the pixels that live blocks need of them."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.plain_launches import current_stream
from sparsegen.integrations.torch.convolution.conv_problem import memory_format_of
from sparsegen.operators import MaskedConv2dProblem, MaskedConv2dWeightsProblem
from sparsegen.plan.arrays import empty_tensors
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.image_orders import Reading, Reordered, bind_reordered
from sparsegen.plan.own_launch import OwnBinding

Convolution = MaskedConv2dProblem | MaskedConv2dWeightsProblem


class ImageCopy:
    """A copy of images in one launch, for tensors like the first call's.

    Attributes:
        empty: makes a tensor like the copy.
    """

    def __init__(self, what: Reordered, like: Tensor, room: int = 0) -> None:
        """
        Args:
            like: tensor of the dtype and on the device of those that come.
            room: images that the copy has memory for, if these are more; of those beyond nothing is written.
        """
        device = kernel_device(like)
        assert device is not None
        self._launch = OwnBinding(shared_executor(device), bind_reordered, what)
        self._launch.bound()  # compiled and loaded, which no capture may do
        images, rows, columns, _ = what.shape
        self._order, order = map(memory_format_of, (what.source, what.to))
        sides = max(images, room), what.written_channels, rows, columns
        self.empty = empty_tensors(torch, sides, like.dtype, like.device, order)
        self._stream = current_stream(like)
        self._is_masked = what.needed is not None

    def __call__(self, images: Tensor, words: Tensor) -> Tensor:
        """A new tensor in the other order.

        Args:
            words: the mask's, if there is one.
        """
        given, made = images.contiguous(memory_format=self._order), self.empty()
        mask = words.data_ptr() if self._is_masked else 0
        self._launch.bound()(self._stream(), mask, given.data_ptr(), made.data_ptr())
        result: Tensor = made
        return result


def outputs_of(problem: Convolution) -> tuple[Reading, Reading]:
    """The outputs in live blocks, along rows and columns."""
    p = problem
    return Reading(p.out_height, p.mask_block.rows), Reading(p.out_width, p.mask_block.columns)


def pixels_of_outputs(problem: Convolution) -> tuple[Reading, Reading]:
    """The pixels that outputs in live blocks read, along rows and columns."""
    p, size = problem, problem.filter_size
    return (
        Reading(
            *(p.out_height, p.mask_block.rows, (size.rows - 1) * p.dilation.rows),
            *(p.padding.rows, p.stride.rows),
        ),
        Reading(
            *(p.out_width, p.mask_block.columns, (size.columns - 1) * p.dilation.columns),
            *(p.padding.columns, p.stride.columns),
        ),
    )
