"""Masked convolutions and their gradients by the weights, by a kernel of ours or by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.launches import Place, Result, launch_of
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_calls import PreparedCall
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.calls.wide import WIDE
from sparsegen.integrations.torch.convolution.channels_last import ChannelsLastConvolution, with_channels_last
from sparsegen.integrations.torch.convolution.channels_last_gradient import (
    ChannelsLastGradient,
    gradient_with_channels_last,
)
from sparsegen.integrations.torch.convolution.conv_problem import (
    Side,
    memory_format,
    memory_format_of,
    pixels_of,
    problem_of,
    sides_of,
)
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.operators import (
    ConvEpilogue,
    Density,
    Dilation,
    DType,
    FilterSize,
    Given,
    Groups,
    MaskBlock,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskOf,
    Padding,
    Stride,
)
from sparsegen.system.integers import ceil_div


def launch_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any
) -> Callable[..., Tensor]:
    """Returns the function that computes the operator ``masked_conv2d``, whose arguments these are, for tensors like
    these.
    """
    problem = _problem(x, weight, bias, rest)
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
    problem, device = _problem(x, weight, bias, rest), kernel_device(x)
    if device is None:
        return None
    places, result = _places(problem)
    return PreparedCall(
        operators.get(problem, device),
        lambda inputs: {name: _seen(inputs, place) for name, place in places.items()},
        lambda written, _: result.viewed(next(iter(written.values()))),
    )


def _problem(x: Tensor, weight: Tensor, bias: Tensor | None, rest: Sequence[Any]) -> MaskedConv2dProblem:
    """The problem of the operator's arguments; ``rest`` are those after the tensors."""
    sides, (groups, mask_of, density, relu, *earlier) = rest[:4], rest[4:]  # the dispatcher passes no default
    problem = problem_of(x, weight, bias, sides, groups, mask_of, density, relu)
    return replace(problem, given=Given.EARLIER) if any(earlier) else problem


def _places(problem: MaskedConv2dProblem) -> tuple[dict[str, Place], Result]:
    """Places of operands among x, weight, bias and words, and the result."""
    by_pixels = None if problem.layout.has_planes else _by_pixels
    places: dict[str, Place] = {"x": (0, by_pixels), "w": (1, _by_pixels), "mask": 3}
    if problem.epilogue is not ConvEpilogue.NONE:
        places["bias"] = 2
    shape = problem.batch, problem.filters, problem.out_height, problem.out_width
    return places, Result(shape, memory_format_of(problem.layout))


def _seen(inputs: Sequence[Any], place: Place) -> Tensor:
    """The operand at a place, as the operator takes it."""
    at, view = place if isinstance(place, tuple) else (place, None)
    tensor: Tensor = inputs[at]
    return tensor if view is None else view(tensor)


def _by_pixels(images: Tensor) -> Tensor:
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


def launch_gradient(
    x: Tensor,
    dy: Tensor,
    words: Tensor,
    filter_size: Side,
    stride: Side,
    padding: Side,
    dilation: Side,
    block: Side,
    groups: int,
    density: float,
) -> Callable[..., Tensor]:
    """Returns the function that computes the operator ``masked_conv2d_weights`` for tensors like these."""
    device = kernel_device(x)
    problem = MaskedConv2dWeightsProblem(
        *(int(x.shape[2]), int(x.shape[3]), int(x.shape[1]), int(dy.shape[1]), int(x.shape[0])),
        DTYPES.get(x.dtype, DType.FLOAT32),
        FilterSize(*filter_size),
        Stride(*stride),
        Padding(*padding),
        Dilation(*dilation),
        Groups(groups),
        MaskBlock(*block),
        Density.parse(density),
    )
    if device is None or not _has_kernel(problem, device):
        return partial(_plain_gradient, problem)
    copied = None if is_capturing(x) else gradient_with_channels_last(problem, x, dy, device)
    if copied is not None:
        return ChannelsLastGradient(
            problem, copied, (x, dy, words), partial(_launch_gradient, copied, device)
        )
    return _launch_gradient(problem, device, (x, dy, words))


def _launch_gradient(
    problem: MaskedConv2dWeightsProblem, device: Device, tensors: tuple[Tensor, Tensor, Tensor]
) -> Callable[..., Tensor]:
    """Returns the function that computes the problem where tensors like these lie."""
    p, operator = problem, operators.get(problem, device)
    places: dict[str, Place] = {"x": (0, _by_pixels), "dy": (1, _by_pixels), "mask": 2}
    shape = p.filters, p.channels // p.groups.count, p.filter_size.rows, p.filter_size.columns
    return launch_of(operator, p, tensors, places, Result(shape, torch.channels_last))


@lru_cache(maxsize=1024)
def _has_kernel(problem: MaskedConv2dWeightsProblem, device: Device) -> bool:
    """True if some family computes it there: not on GPUs before 8.0, nor windows that shared memory cannot hold."""
    features = problem.features(problem.without_pattern)
    return any(
        family.is_valid(problem, family.heuristic(problem, features, device), device)
        for family in families_of(problem.operator)
    )


def _plain_gradient(problem: MaskedConv2dWeightsProblem, x: Tensor, dy: Tensor, words: Tensor) -> Tensor:
    """Computes the gradient by PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
    wide, p = x.dtype if x.dtype in WIDE else torch.float32, problem
    stride, padding, dilation, block = sides_of(p)
    groups = p.groups.count
    gradient = torch.where(live_pixels(words, block, dy), dy, 0).detach().to(wide)
    weight = gradient.new_empty(
        (dy.shape[1], x.shape[1] // groups, p.filter_size.rows, p.filter_size.columns)
    )
    sides = stride, padding, dilation
    _, found = dense_gradients(gradient, x.detach().to(wide), weight, sides, groups, (False, True))
    assert found is not None
    return found.to(x.dtype).contiguous(memory_format=torch.channels_last)


def dense_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, sides: tuple[Side, ...], groups: int, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the dense convolution by x and by the weights, those that are needed.

    Args:
        sides: stride, padding and dilation.
    """
    found = torch.ops.aten.convolution_backward(
        *(dy, x, weight, None, *sides, False, (0, 0), groups, (*needs, False))
    )
    return found[0], found[1]


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
