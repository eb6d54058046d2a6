"""Masked convolutions by a kernel of ours, or by PyTorch where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.launches import Place, Result, launch_of
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_calls import PreparedCall
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.calls.wide import WIDE
from sparsegen.integrations.torch.convolution.channels_last import ChannelsLastConvolution, with_channels_last
from sparsegen.integrations.torch.convolution.conv_problem import (
    Side,
    memory_format,
    memory_format_of,
    pixels_of,
    problem_of,
    sides_of,
)
from sparsegen.kernels.base import Device
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.operators import ConvEpilogue, Given, MaskedConv2dProblem, MaskOf
from sparsegen.system.integers import ceil_div


def launch_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any
) -> Callable[..., Tensor]:
    """Returns the function that computes the operator ``masked_conv2d``, whose arguments these are, for tensors like
    these.
    """
    problem = convolution_of(x, weight, bias, rest)
    device = kernel_device(x)
    if device is None:
        return partial(_plain, problem)
    copied = None if is_capturing(x) else with_channels_last(problem, device)  # a capture may load nothing
    if copied is not None:
        return ChannelsLastConvolution(
            problem, copied, (x, weight, bias, words), partial(_launch, copied, device)
        )
    return _launch(problem, device, (x, weight, bias, words))


def _launch(
    problem: MaskedConv2dProblem,
    device: Device,
    tensors: tuple[Tensor | None, ...],
    result: Result | None = None,
) -> Callable[..., Tensor]:
    """Returns the function that computes the problem where tensors like these lie.

    Args:
        result: None for the usual one.
    """
    places, usual = _places(problem)
    return launch_of(operators.get(problem, device), problem, tensors, places, result or usual)


def prepared(
    x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any
) -> PreparedCall | None:
    """The kernel of the operator ``masked_conv2d``, whose arguments these are; None where PyTorch computes it.

    Args:
        words: may have no data, as all tensors.
    """
    problem, device = convolution_of(x, weight, bias, rest), kernel_device(x)
    if device is None:
        return None
    places, result = _places(problem)
    return PreparedCall(
        operators.get(problem, device),
        lambda inputs: {name: _seen(inputs, place) for name, place in places.items()},
        lambda written, _: result.viewed(next(iter(written.values()))),
    )


def convolution_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, rest: Sequence[Any]
) -> MaskedConv2dProblem:
    """The problem of the operator's arguments; ``rest`` are those after the tensors."""
    sides, (groups, mask_of, density, relu, *others) = rest[:4], rest[4:]  # the dispatcher passes no default
    problem = problem_of(x, weight, bias, sides, groups, mask_of, density, relu)
    return replace(problem, given=Given.EARLIER) if any(others[:1]) else problem


def _places(problem: MaskedConv2dProblem) -> tuple[dict[str, Place], Result]:
    """Places of operands among x, weight, bias and words, and the result."""
    view = None if problem.layout.has_planes else by_pixels
    places: dict[str, Place] = {"x": (0, view), "w": (1, by_pixels), "mask": 3}
    if problem.epilogue is not ConvEpilogue.NONE:
        places["bias"] = 2
    shape = problem.batch, problem.filters, problem.out_height, problem.out_width
    return places, Result(shape, memory_format_of(problem.layout))


def _seen(inputs: Sequence[Any], place: Place) -> Tensor:
    """The operand at a place, as the operator takes it."""
    at, view = place if isinstance(place, tuple) else (place, None)
    tensor: Tensor = inputs[at]
    return tensor if view is None else view(tensor)


def by_pixels(images: Tensor) -> Tensor:
    """Images × height × width × channels."""
    return images.permute(0, 2, 3, 1)


def _plain(
    problem: MaskedConv2dProblem, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor
) -> Tensor:
    """Computes the convolution by PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
    wide = x.dtype if x.dtype in WIDE else torch.float32
    added = None if bias is None else bias.detach().to(wide)
    stride, padding, dilation, block = sides_of(problem)
    if problem.mask_of is MaskOf.ANY_INPUT:
        x = torch.where(live_pixels(words, block, x), x, 0)
    found = functional.conv2d(
        x.detach().to(wide), weight.detach().to(wide), added, stride, padding, dilation, problem.groups.count
    )
    if problem.epilogue is ConvEpilogue.BIAS_RELU:
        found = found.relu()
    if problem.mask_of is MaskOf.OUTPUT:
        found = torch.where(live_pixels(words, block, found), found, 0)
    return found.to(x.dtype).contiguous(memory_format=memory_format(x))


def live_blocks(words: Tensor, block: Side, size: tuple[int, int]) -> Tensor:
    """Unpacks the words of masks over ``size`` pixels: bool, images × rows × columns of blocks."""
    rows, columns = ceil_div(size[0], block[0]), ceil_div(size[1], block[1])
    bits = words.view(torch.int64).reshape(
        -1, rows, words.numel() // (_images(words, rows, columns) * rows), 1
    )
    bits = bits >> torch.arange(WORD_BITS, device=words.device)
    return (bits & 1).bool().reshape(bits.shape[0], rows, -1)[..., :columns]


def _images(words: Tensor, rows: int, columns: int) -> int:
    return words.numel() // (rows * ceil_div(columns, WORD_BITS))


def live_pixels(words: Tensor, block: Side, like: Tensor) -> Tensor:
    """bool for each pixel of images as ``like``: images × 1 × height × width."""
    height, width = int(like.shape[2]), int(like.shape[3])
    return pixels_of(live_blocks(words, block, (height, width)), block, like)
