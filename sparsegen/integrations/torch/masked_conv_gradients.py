"""The gradients of masked convolutions: by x a masked convolution, by the weights a product over live blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.masked_prepared import called, operators
from sparsegen.integrations.torch.pattern import DTYPES, kernel_device
from sparsegen.integrations.torch.plain import WIDE
from sparsegen.integrations.torch.prepared import is_capturing
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.matrix.spatial_mask import Reach, dilate, words_of
from sparsegen.operators import (
    Density,
    Dilation,
    FilterSize,
    Groups,
    MaskBlock,
    MaskedConv2dWeightsProblem,
    MaskOf,
    Padding,
    Stride,
)

AROUND = 9  # blocks, of which one that is live makes a block of the output live


@dataclass(frozen=True, slots=True)
class Sides:
    """What a convolution is besides its tensors; rows and columns each."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    block: list[int]
    groups: int
    density: float

    def transposed(self, filter_size: tuple[int, int]) -> Sides | None:
        """The sides of the convolution that is the gradient by x; None where it is no convolution."""
        reach = [self.dilation[i] * (filter_size[i] - 1) for i in range(2)]
        if self.stride != [1, 1] or any(self.padding[i] > reach[i] for i in range(2)):
            return None
        return replace(self, padding=[reach[i] - self.padding[i] for i in range(2)])

    def convolved(self, x: Tensor, weight: Tensor, words: Tensor, mask_of: MaskOf) -> Tensor:
        """The masked convolution."""
        found: Tensor = torch.ops.sparsegen.masked_conv2d(
            *(x, weight, None, words, self.stride, self.padding, self.dilation, self.block, self.groups),
            *(str(mask_of), self.density, False),
        )
        return found

    def by_weights(self, x: Tensor, dy: Tensor, words: Tensor, filter_size: list[int]) -> Tensor:
        """The gradient by the weights, with a mask of the output."""
        found: Tensor = torch.ops.sparsegen.masked_conv2d_weights(
            *(x, dy, words, filter_size, self.stride, self.padding, self.dilation, self.block),
            *(self.groups, self.density),
        )
        return found

    def dense(
        self, dy: Tensor, x: Tensor, weight: Tensor, needs: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the dense convolution by x and by the weights, those that are needed."""
        found = torch.ops.aten.convolution_backward(
            *(dy, x, weight, None, self.stride, self.padding, self.dilation, False, [0, 0], self.groups),
            [*needs, False],
        )
        return found[0], found[1]


def live_blocks(words: Tensor, block: list[int], size: tuple[int, int]) -> Tensor:
    """bool, images × rows × columns of blocks, of the words of masks over so many pixels."""
    rows, columns = -(-size[0] // block[0]), -(-size[1] // block[1])
    bits = words.view(torch.int64).reshape(
        -1, rows, words.numel() // (_images(words, rows, columns) * rows), 1
    )
    bits = bits >> torch.arange(WORD_BITS, device=words.device)
    return (bits & 1).bool().reshape(bits.shape[0], rows, -1)[..., :columns]


def _images(words: Tensor, rows: int, columns: int) -> int:
    return words.numel() // (rows * -(-columns // WORD_BITS))


def live_pixels(words: Tensor, block: list[int], like: Tensor) -> Tensor:
    """bool for each pixel of images as ``like``: images × 1 × height × width."""
    height, width = int(like.shape[2]), int(like.shape[3])
    blocks = live_blocks(words, block, (height, width))[:, None]
    wide = blocks.repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    return wide[:, :, :height, :width]


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

    A mask of the output, or of any input, is one of the gradients too: dead blocks are neither read nor computed. By x
    of a convolution with a stride, or with a mask of the input, the gradient is a dense convolution's; so is the one by
    the weights where no kernel computes it (`_has_kernel`).
    """
    filter_size = (int(weight.shape[2]), int(weight.shape[3]))
    dx = dw = db = None
    if needs[0]:
        dx = _by_x(dy, x, weight, words, sides, mask_of)
    if needs[1]:
        counted, mask, own = x, words, sides
        if mask_of is not MaskOf.OUTPUT:
            if mask_of is MaskOf.ANY_INPUT:
                counted = torch.where(live_pixels(words, sides.block, x), x, 0)
            reach = Reach(filter_size, *map(_pair, (sides.stride, sides.padding, sides.dilation)))
            size = (int(x.shape[2]), int(x.shape[3]))
            blocks = live_blocks(words, sides.block, size)
            mask = words_of(dilate(blocks, size, _pair(sides.block), reach))
            own = replace(sides, density=1 - (1 - sides.density) ** AROUND)
        dw = own.by_weights(counted, dy, mask, list(filter_size))
    if needs[2]:
        db = _by_bias(dy, words, sides) if mask_of is MaskOf.OUTPUT else dy.sum((0, 2, 3))
    return dx, dw, db


def _by_x(
    dy: Tensor, x: Tensor, weight: Tensor, words: Tensor, sides: Sides, mask_of: MaskOf
) -> Tensor | None:
    transposed = sides.transposed((int(weight.shape[2]), int(weight.shape[3])))
    if transposed is None or mask_of is MaskOf.INPUT:
        if mask_of is MaskOf.OUTPUT:
            dy = torch.where(live_pixels(words, sides.block, dy), dy, 0)
        dx, _ = sides.dense(dy, x, weight, (True, False))
        if mask_of is MaskOf.ANY_INPUT and dx is not None:
            dx = torch.where(live_pixels(words, sides.block, dx), dx, 0)
        return dx
    over = MaskOf.ANY_INPUT if mask_of is MaskOf.OUTPUT else MaskOf.OUTPUT
    return transposed.convolved(dy, _opposite(weight, sides.groups), words, over)


def _opposite(weight: Tensor, groups: int) -> Tensor:
    """The filters of the gradient by x: channels × filters of a group × taps in the opposite order."""
    filters, channels, rows, columns = weight.shape
    by_groups = weight.reshape(groups, filters // groups, channels, rows, columns).transpose(1, 2)
    return by_groups.reshape(groups * channels, filters // groups, rows, columns).flip(2, 3)


def _by_bias(dy: Tensor, words: Tensor, sides: Sides) -> Tensor:
    """The sums over live blocks: the gradient by the weight of a filter of one pixel that reads ones."""
    ones = dy.new_ones((dy.shape[0], 1, dy.shape[2], dy.shape[3]))
    lone = replace(sides, stride=[1, 1], padding=[0, 0], dilation=[1, 1], groups=1)
    return lone.by_weights(ones, dy, words, [1, 1]).reshape(-1)


def _pair(sides: list[int]) -> tuple[int, int]:
    return sides[0], sides[1]


# --- the custom operator of the gradient by the weights ---


@torch.library.custom_op("sparsegen::masked_conv2d_weights", mutates_args=())
def _weights(
    x: Tensor,
    dy: Tensor,
    words: Tensor,
    filter_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    block: list[int],
    groups: int,
    density: float,
) -> Tensor:
    device = kernel_device(x)
    sides = Sides(stride, padding, dilation, block, groups, density)
    if device is None:
        return _plain_weights(x, dy, words, filter_size, sides)
    problem = MaskedConv2dWeightsProblem(
        *(int(x.shape[2]), int(x.shape[3]), int(x.shape[1]), int(dy.shape[1]), int(x.shape[0])),
        DTYPES[x.dtype],
        FilterSize(*filter_size),
        Stride(*stride),
        Padding(*padding),
        Dilation(*dilation),
        Groups(groups),
        MaskBlock(*block),
        Density.parse(density),
    )
    if not _has_kernel(problem, device):
        return _plain_weights(x, dy, words, filter_size, sides)
    operator = operators.get(problem, device, is_capturing(x))
    given = [x.permute(0, 2, 3, 1), dy.permute(0, 2, 3, 1)]
    found = called(operator, given, words.reshape(-1).view(torch.uint64))
    return found.permute(0, 3, 1, 2)


@lru_cache(maxsize=1024)
def _has_kernel(problem: MaskedConv2dWeightsProblem, device: Device) -> bool:
    """Whether some family computes it there: not on GPUs before 8.0, nor windows that shared memory cannot hold."""
    features = problem.features(problem.without_pattern)
    return any(
        family.is_valid(problem, family.heuristic(problem, features, device), device)
        for family in families_of(problem.operator)
    )


@_weights.register_fake
def _(x: Tensor, dy: Tensor, words: Tensor, filter_size: list[int], *sides: Any) -> Tensor:
    groups = sides[4]
    shape = (dy.shape[1], filter_size[0], filter_size[1], x.shape[1] // groups)
    return x.new_empty(shape).permute(0, 3, 1, 2)


def _plain_weights(x: Tensor, dy: Tensor, words: Tensor, filter_size: list[int], sides: Sides) -> Tensor:
    """By PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
    wide = x.dtype if x.dtype in WIDE else torch.float32
    gradient = torch.where(live_pixels(words, sides.block, dy), dy, 0).detach().to(wide)
    weight = gradient.new_empty((dy.shape[1], x.shape[1] // sides.groups, *filter_size))
    _, found = sides.dense(gradient, x.detach().to(wide), weight, (False, True))
    assert found is not None
    return found.to(x.dtype).contiguous(memory_format=torch.channels_last)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, dy, words, _, *sides = inputs
    ctx.save_for_backward(x, dy, words)
    ctx.sides = Sides(*sides)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, dy, words = ctx.saved_tensors
    dx = ddy = None
    if ctx.needs_input_grad[0]:
        dx = _by_x(dy, x, gradient, words, ctx.sides, MaskOf.OUTPUT)
    if ctx.needs_input_grad[1]:
        ddy = ctx.sides.convolved(x, gradient, words, MaskOf.OUTPUT)
    return (dx, ddy, *[None] * 8)


_weights.register_autograd(_backward, setup_context=_remember)
