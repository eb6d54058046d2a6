"""What masked convolutions compute, and their gradients by the weights: by a kernel of ours, or by PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import called, operators
from sparsegen.integrations.torch.calls.ready_calls import Computed, ReadyCalls
from sparsegen.integrations.torch.convolution.conv_problem import (
    Side,
    memory_format,
    pixels_of,
    problem_of,
    sides_of,
)
from sparsegen.integrations.torch.pattern.plain import WIDE
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.operators import (
    ConvEpilogue,
    Density,
    Dilation,
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

_ready = ReadyCalls()


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any) -> Tensor:
    """The convolution of the operator ``masked_conv2d``, whose arguments these are."""
    return _ready.run("masked_conv2d", (x, weight, words, bias), rest, _first_convolution)


def gradient_by_weights(x: Tensor, dy: Tensor, words: Tensor, *rest: Any) -> Tensor:
    """The gradient of the operator ``masked_conv2d_weights``, likewise."""
    return _ready.run("masked_conv2d_weights", (x, dy, words), rest, _first_gradient)


def _first_convolution(
    x: Tensor,
    weight: Tensor,
    words: Tensor,
    bias: Tensor | None,
    stride: Side,
    padding: Side,
    dilation: Side,
    block: Side,
    groups: int,
    mask_of: str,
    density: float,
    relu: bool,
    earlier: bool = False,
) -> Computed:
    sides = stride, padding, dilation, block
    problem = problem_of(x, weight, bias, sides, groups, mask_of, density, relu)
    device = kernel_device(x)
    if device is None:
        return _plain(problem, x, weight, bias, words), None
    if earlier:
        problem = replace(problem, given=Given.EARLIER)
    ready = _Convolution.of(problem, operators.get(problem, device, is_capturing(x)))
    return ready(x, weight, words, bias), ready


@dataclass(frozen=True, slots=True)
class _Convolution:
    """What calls with tensors of one kind go to; shapes as the operator takes and gives arrays."""

    operator: Any
    has_planes: bool
    images: tuple[int, ...]
    mask: tuple[int, ...]
    result: tuple[int, ...]

    @classmethod
    def of(cls, problem: MaskedConv2dProblem, operator: Any) -> _Convolution:
        """For a problem and its operator."""
        p, shapes = problem, {spec.name: spec.shape for spec in problem.operands(0)}
        result = p.batch, *p.layout.shape(p.out_height, p.out_width, p.filters)
        return cls(operator, p.layout.has_planes, shapes["x"], shapes["mask"], result)

    def __call__(self, x: Tensor, weight: Tensor, words: Tensor, bias: Tensor | None) -> Tensor:
        images = (x if self.has_planes else x.permute(0, 2, 3, 1)).reshape(self.images)
        added = {} if bias is None else {"bias": bias}
        live = words.reshape(self.mask).view(torch.uint64)
        found = called(self.operator, [images, weight.permute(0, 2, 3, 1)], live, **added)
        found = found.reshape(self.result)
        return (found if self.has_planes else found.permute(0, 3, 1, 2)).detach()


def _plain(
    problem: MaskedConv2dProblem, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor
) -> Tensor:
    """By PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
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


def _first_gradient(
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
) -> Computed:
    device = kernel_device(x)
    sides = stride, padding, dilation
    if device is None:
        return _plain_gradient(x, dy, words, filter_size, sides, block, groups), None
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
        return _plain_gradient(x, dy, words, filter_size, sides, block, groups), None
    ready = _Gradient(operators.get(problem, device, is_capturing(x)))
    return ready(x, dy, words), ready


@dataclass(frozen=True, slots=True)
class _Gradient:
    """What calls with tensors of one kind go to."""

    operator: Any

    def __call__(self, x: Tensor, dy: Tensor, words: Tensor) -> Tensor:
        given = [x.permute(0, 2, 3, 1), dy.permute(0, 2, 3, 1)]
        found = called(self.operator, given, words.reshape(-1).view(torch.uint64))
        return found.permute(0, 3, 1, 2).detach()


@lru_cache(maxsize=1024)
def _has_kernel(problem: MaskedConv2dWeightsProblem, device: Device) -> bool:
    """Whether some family computes it there: not on GPUs before 8.0, nor windows that shared memory cannot hold."""
    features = problem.features(problem.without_pattern)
    return any(
        family.is_valid(problem, family.heuristic(problem, features, device), device)
        for family in families_of(problem.operator)
    )


def _plain_gradient(
    x: Tensor, dy: Tensor, words: Tensor, filter_size: Side, sides: tuple[Side, ...], block: Side, groups: int
) -> Tensor:
    """By PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
    wide = x.dtype if x.dtype in WIDE else torch.float32
    gradient = torch.where(live_pixels(words, block, dy), dy, 0).detach().to(wide)
    weight = gradient.new_empty((dy.shape[1], x.shape[1] // groups, *filter_size))
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
    """bool, images × rows × columns of blocks, of the words of masks over so many pixels."""
    rows, columns = -(-size[0] // block[0]), -(-size[1] // block[1])
    bits = words.view(torch.int64).reshape(
        -1, rows, words.numel() // (_images(words, rows, columns) * rows), 1
    )
    bits = bits >> torch.arange(WORD_BITS, device=words.device)
    return (bits & 1).bool().reshape(bits.shape[0], rows, -1)[..., :columns]


def _images(words: Tensor, rows: int, columns: int) -> int:
    return words.numel() // (rows * -(-columns // WORD_BITS))


def live_pixels(words: Tensor, block: Side, like: Tensor) -> Tensor:
    """bool for each pixel of images as ``like``: images × 1 × height × width."""
    height, width = int(like.shape[2]), int(like.shape[3])
    return pixels_of(live_blocks(words, block, (height, width)), block, like)
