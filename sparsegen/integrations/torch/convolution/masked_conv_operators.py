"""The custom operators of masked convolutions: each one's gradients are made of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.direct import Context, may_run_at_once
from sparsegen.integrations.torch.calls.launched_operator import LaunchedOperator
from sparsegen.integrations.torch.convolution.conv_choice import launch_chosen
from sparsegen.integrations.torch.convolution.conv_problem import Side, memory_format, zero_outside
from sparsegen.integrations.torch.convolution.dense_convolution import dense_gradients
from sparsegen.integrations.torch.convolution.masked_conv_kernels import live_blocks
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.integrations.torch.convolution.weight_gradients import launch_gradient
from sparsegen.integrations.torch.convolution.zeroed_pixels import zeroed_copy
from sparsegen.matrix.live_blocks import any_live
from sparsegen.matrix.spatial_mask import Reach
from sparsegen.operators import MaskOf

AROUND = 9  # blocks, one live one of which makes a block of the output live


@dataclass(frozen=True, slots=True)
class Sides:
    """Parameters of a convolution besides its tensors; rows and columns each.

    Attributes:
        dense: permission of cuDNN's gradients.
    """

    stride: Side
    padding: Side
    dilation: Side
    block: Side
    groups: int
    density: float
    dense: str

    def transposed(self, filter_size: Side) -> Sides | None:
        """The sides of the convolution that is the gradient by x; None where it is no convolution."""
        down, across = (self.dilation[i] * (filter_size[i] - 1) - self.padding[i] for i in range(2))
        if self.stride != (1, 1) or down < 0 or across < 0:
            return None
        return replace(self, padding=(down, across))

    def convolved(self, x: Tensor, weight: Tensor, words: Tensor, mask_of: MaskOf) -> Tensor:
        """The masked convolution."""
        found: Tensor = masked_conv2d(
            *(x, weight, None, words, self.stride, self.padding, self.dilation, self.block, self.groups),
            *(str(mask_of), self.density, False, False, self.dense),
        )
        return found

    def by_weights(self, x: Tensor, dy: Tensor, words: Tensor, filter_size: Side) -> Tensor:
        """The gradient by the weights, with a mask of the output."""
        found: Tensor = masked_conv2d_weights(
            *(x, dy, words, filter_size, self.stride, self.padding, self.dilation, self.block),
            *(self.groups, self.density, self.dense),
        )
        return found


def gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    words: Tensor,
    sides: Sides,
    mask_of: MaskOf,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients by x, by the weights and by the bias, those that are needed.

    A mask of the output, or of any input, is one of the gradients too: dead blocks are neither read nor computed unless
    a dense gradient takes less time, each by its own times. By x of a convolution with a stride, or with a mask of the
    input, the gradient is a dense convolution's; so is the one by the weights where no kernel computes it.
    """
    filter_size = (int(weight.shape[2]), int(weight.shape[3]))
    dx = dw = db = None
    if needs[0]:
        dx = _by_x(dy, x, weight, words, sides, mask_of)
    if needs[1]:
        counted, mask, own = x, words, sides
        if mask_of is not MaskOf.OUTPUT:
            if mask_of is MaskOf.ANY_INPUT:
                counted = _zeroed(x, words, sides.block)
            reach = Reach(filter_size, *(sides.stride, sides.padding, sides.dilation))
            size = (int(x.shape[2]), int(x.shape[3]))
            blocks = live_blocks(words, sides.block, size)
            mask = PackedMask.behind(blocks, size, sides.block, reach).words
            own = replace(sides, density=any_live(sides.density, AROUND))
        dw = own.by_weights(counted, dy, mask, filter_size)
    if needs[2]:
        db = _by_bias(dy, words, sides) if mask_of is MaskOf.OUTPUT else dy.sum((0, 2, 3))
    return dx, dw, db


def _by_x(
    dy: Tensor, x: Tensor, weight: Tensor, words: Tensor, sides: Sides, mask_of: MaskOf
) -> Tensor | None:
    transposed = sides.transposed((int(weight.shape[2]), int(weight.shape[3])))
    if transposed is None or mask_of is MaskOf.INPUT:
        if mask_of is MaskOf.OUTPUT:
            dy = _zeroed(dy, words, sides.block)
        own = sides.stride, sides.padding, sides.dilation
        dx, *_ = dense_gradients(dy, x, weight, own, sides.groups, (True, False, False))
        if mask_of is MaskOf.ANY_INPUT and dx is not None:
            dx = _zeroed(dx, words, sides.block)
        return dx
    over = MaskOf.ANY_INPUT if mask_of is MaskOf.OUTPUT else MaskOf.OUTPUT
    return transposed.convolved(dy, _opposite(weight, sides.groups), words, over)


def _zeroed(images: Tensor, words: Tensor, block: Side) -> Tensor:
    """Images with zeros outside of a mask's blocks."""
    mask = live_blocks(words, block, (int(images.shape[2]), int(images.shape[3])))
    if may_run_at_once(images):
        return zeroed_copy(images, mask, block)
    return zero_outside(images, mask, block)


def _opposite(weight: Tensor, groups: int) -> Tensor:
    """The filters of the gradient by x: channels × filters of a group × taps in the opposite order."""
    filters, channels, rows, columns = weight.shape
    by_groups = weight.reshape(groups, filters // groups, channels, rows, columns).transpose(1, 2)
    return by_groups.reshape(groups * channels, filters // groups, rows, columns).flip(2, 3)


def _by_bias(dy: Tensor, words: Tensor, sides: Sides) -> Tensor:
    """The sums over live blocks: the gradient by the weight of a filter of one pixel that reads ones."""
    ones = dy.new_ones((dy.shape[0], 1, dy.shape[2], dy.shape[3]))
    lone = replace(sides, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1)
    return lone.by_weights(ones, dy, words, (1, 1)).reshape(-1)


# --- the operators ---


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *sides: Any) -> Tensor:
    stride, padding, dilation = sides[:3]
    rows, columns = (
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )
    shape = (x.shape[0], weight.shape[0], rows, columns)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format(x))


def _remember(ctx: Context, inputs: Sequence[Any], output: Tensor) -> None:
    x, weight, bias, words, stride, padding, dilation, block, groups, mask_of, density, relu, _, dense = (
        inputs
    )
    ctx.save_for_backward(x, weight, words, output if relu else None)
    ctx.sides = Sides(stride, padding, dilation, block, groups, density, dense)
    ctx.mask_of, ctx.has_bias = MaskOf(mask_of), bias is not None


def _backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, words, y = ctx.saved_tensors
    if y is not None:
        dy = torch.where(y > 0, dy, 0)
    by_x, by_weights, by_bias = ctx.needs_input_grad[:3]
    needs = by_x, by_weights, ctx.has_bias and by_bias
    found = gradients(dy, x, weight, words, ctx.sides, ctx.mask_of, needs)
    return (*found, *[None] * 11)


def _fake_by_weights(x: Tensor, dy: Tensor, words: Tensor, filter_size: Side, *sides: Any) -> Tensor:
    groups = sides[4]
    shape = (dy.shape[1], filter_size[0], filter_size[1], x.shape[1] // groups)
    return x.new_empty(shape).permute(0, 3, 1, 2)


def _remember_by_weights(ctx: Context, inputs: Sequence[Any], output: Tensor) -> None:
    x, dy, words, _, *sides = inputs
    ctx.save_for_backward(x, dy, words)
    ctx.sides = Sides(*sides)


def _backward_by_weights(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, dy, words = ctx.saved_tensors
    dx = ddy = None
    if ctx.needs_input_grad[0]:
        dx = _by_x(dy, x, gradient, words, ctx.sides, MaskOf.OUTPUT)
    if ctx.needs_input_grad[1]:
        ddy = ctx.sides.convolved(x, gradient, words, MaskOf.OUTPUT)
    return (dx, ddy, *[None] * 9)


masked_conv2d = LaunchedOperator(
    "masked_conv2d",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor words, int[] stride, int[] padding, int[] dilation, int[] block, "
    "int groups, str mask_of, float density, bool relu, bool earlier=False, str dense='auto') -> Tensor",
    launch_chosen,
    fake=_fake,
    tensors=4,
    backward=_backward,
    remember=_remember,
)
"""The convolution; ``earlier`` as of `PackedMask`, ``dense`` as of `masked_conv2d`, of gradients too."""

masked_conv2d_weights = LaunchedOperator(
    "masked_conv2d_weights",
    "(Tensor x, Tensor dy, Tensor words, int[] filter_size, int[] stride, int[] padding, int[] dilation, int[] block, "
    "int groups, float density, str dense='auto') -> Tensor",
    launch_gradient,
    fake=_fake_by_weights,
    tensors=3,
    backward=_backward_by_weights,
    remember=_remember_by_weights,
)
