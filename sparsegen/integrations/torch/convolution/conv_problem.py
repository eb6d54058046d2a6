"""The problem of a masked convolution that tensors and options ask for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.tensor_checks import require_real
from sparsegen.operators import (
    ConvEpilogue,
    Groups,
    ImageLayout,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskOf,
)

Side = tuple[int, int]


def problem_of(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sides: Sequence[object],
    groups: int,
    mask_of: MaskOf | str,
    density: float,
    relu: bool,
) -> MaskedConv2dProblem:
    """Returns the problem of the tensors; float64, which PyTorch computes itself, counts as float32.

    Args:
        sides: stride, padding, dilation and the block of the mask, as users give them.

    Raises:
        OperandError, ConfigError: shapes, dtypes, devices or sides that do not fit.
    """
    stride, padding, dilation, block = sides
    require_real(x, "x")
    require_real(weight, "weight")
    groups = Groups.named(groups, "groups").count
    if x.dim() != 4 or weight.dim() != 4 or x.shape[1] != weight.shape[1] * groups:
        raise OperandError(
            f"expected images × channels × height × width and filters × channels of one of {groups} groups × rows × "
            f"columns, got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and (tensor.dtype != x.dtype or tensor.device != x.device):
            raise OperandError(
                f"{name}: expected {x.dtype} on {x.device}, got {tensor.dtype} on {tensor.device}"
            )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise OperandError(f"bias: expected {weight.shape[0]} values, got shape {tuple(bias.shape)}")
    epilogue = ConvEpilogue.NONE if bias is None else ConvEpilogue.BIAS_RELU if relu else ConvEpilogue.BIAS
    return MaskedConv2dProblem.of(
        (x.shape[2], x.shape[3]),
        channels=x.shape[1],
        filters=weight.shape[0],
        dtype=DTYPES.get(x.dtype, DTYPES[torch.float32]),
        filter_size=tuple(weight.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        mask_block=block,
        mask_of=mask_of,
        density=density,
        epilogue=epilogue,
        batch=x.shape[0],
        layout=layout_of(x),
    )


def layout_of(x: Tensor) -> ImageLayout:
    """The memory order in which images are read, and the result is written; those that lie otherwise are copied."""
    if x.is_contiguous() and not x.is_contiguous(memory_format=torch.channels_last):
        return ImageLayout.NCHW
    return ImageLayout.NHWC


def memory_format(x: Tensor) -> torch.memory_format:
    """Memory format of the result."""
    return memory_format_of(layout_of(x))


def memory_format_of(layout: ImageLayout) -> torch.memory_format:
    """PyTorch's word for a memory order."""
    return torch.contiguous_format if layout.has_planes else torch.channels_last


def pixels_of(blocks: Tensor, block: Side, like: Tensor) -> Tensor:
    """Expands blocks' values to the pixels of ``like``, images × 1 × height × width; blocks: images × rows ×
    columns.
    """
    wide = blocks[:, None].repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    return wide[:, :, : like.shape[2], : like.shape[3]]


def zero_outside(images: Tensor, mask: Tensor, block: Side) -> Tensor:
    """Images × channels × height × width with zeros outside of a mask's blocks."""
    return torch.where(pixels_of(mask, block, images), images, 0)


def sides_of(
    problem: MaskedConv2dProblem | MaskedConv2dWeightsProblem,
) -> tuple[Side, Side, Side, Side]:
    """Rows and columns of stride, padding, dilation and of a block of the mask, as the operator takes them."""
    p = problem
    stride, padding, dilation, block = (
        (side.rows, side.columns) for side in (p.stride, p.padding, p.dilation, p.mask_block)
    )
    return stride, padding, dilation, block
