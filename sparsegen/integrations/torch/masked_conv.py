"""A convolution with a mask of spatial blocks for every call, as a custom operator of PyTorch and as a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.conv_choice import masked_convolution_pays, sides_of, zero_outside
from sparsegen.integrations.torch.masked_conv_gradients import Sides, gradients, live_pixels
from sparsegen.integrations.torch.masked_prepared import called, operators
from sparsegen.integrations.torch.pattern import DTYPES, kernel_device
from sparsegen.integrations.torch.plain import WIDE
from sparsegen.integrations.torch.prepared import is_capturing
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import (
    ConvEpilogue,
    Density,
    Dilation,
    FilterSize,
    Given,
    Groups,
    ImageLayout,
    MaskBlock,
    MaskedConv2dProblem,
    MaskOf,
    Padding,
    Stride,
)


@dataclass(frozen=True, slots=True)
class PackedMask:
    """A mask with its words, which several layers take without packing it again.

    Attributes:
        blocks: bools, images × rows × columns of blocks.
        words: of the mask.
        is_earlier: the words, and the layer's filters and bias, were written before the kernel began that comes before
            the layer's on the stream; then that of the layer reads them while the other still ends.
    """

    blocks: Tensor
    words: Tensor
    is_earlier: bool = False


def masked_conv2d(
    x: Tensor,
    weight: Tensor,
    mask: Tensor | PackedMask,
    bias: Tensor | None = None,
    *,
    block: Any = 16,
    mask_of: MaskOf | str = MaskOf.OUTPUT,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    density: float = 0.5,
    relu: bool = False,
    dense: Dense | str = Dense.AUTO,
) -> Tensor:
    """The convolution of which a mask names the output blocks that are computed, or the input blocks that are not zero.

    Elsewhere the output is zero; with a mask of the input it is what a convolution of zeros gives, and x must be zero
    outside the mask; of any input (``"any_input"``) x counts as zero there, whatever it holds. Images in
    `torch.channels_last` and contiguous ones are read where they lie; the kernels for the former are faster. Other
    images, such as slices, are copied to `torch.channels_last`. Gradients are kernels over live blocks too, but for the
    one by x where the convolution has a stride, or a mask of the input: that one is dense.

    Args:
        x: images × channels × height × width.
        weight: filters × channels of a group × rows × columns, of x's dtype and device.
        mask: bools, images × rows × columns of blocks (`sparsegen.masks`); or packed beforehand, for several layers.
        bias: a value for each filter.
        block: pixels of a block of the mask: a number, two, or text such as ``"8x16"``.
        density: the expected share of live blocks, by which the kernel is chosen.
        relu: set negative results to zero. It needs a bias.
        dense: whether PyTorch's own convolution runs, whose result is then set to zero outside the mask. ``"auto"``:
            where it takes less time, which is tried when sizes are first met on a GPU (`masked_convolution_pays`).

    Returns:
        images × filters × height × width, in x's memory format.

    Raises:
        OperandError, ConfigError: shapes, dtypes, devices or sides that do not fit.
    """
    packed = mask if isinstance(mask, PackedMask) else None
    mask = mask.blocks if isinstance(mask, PackedMask) else mask
    relu = arguments.flag(relu, "relu", OperandError)
    if relu and bias is None:
        raise OperandError("relu=True needs a bias: use torch.relu on the result without one")
    if mask.dtype != torch.bool or mask.dim() != 3 or mask.device != x.device:
        raise OperandError(
            f"mask: expected bools, images × rows × columns of blocks, on {x.device}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)} on {mask.device}"
        )
    if (
        torch.compiler.is_compiling()
    ):  # a problem is no tensor: it is made, and checked, when the operator runs
        pairs = [_pair(value) for value in (stride, padding, dilation, block)]
        compiled: Tensor = torch.ops.sparsegen.masked_conv2d(
            *(x, weight, bias, words_of(mask) if packed is None else packed.words),
            *(*pairs, groups, str(mask_of), density, relu, packed is not None and packed.is_earlier),
        )
        return compiled
    problem = _problem(x, weight, bias, block, mask_of, stride, padding, dilation, groups, density, relu)
    wanted = problem.batch, *problem.mask_shape
    if tuple(mask.shape) != wanted:
        raise OperandError(f"mask: expected {wanted} blocks of {problem.mask_block}, got {tuple(mask.shape)}")
    if not _runs_masked(Dense.parse(dense), problem, x):
        return _dense(problem, x, weight, bias, mask)
    result: Tensor = torch.ops.sparsegen.masked_conv2d(
        *(x, weight, bias, words_of(mask) if packed is None else packed.words, *sides_of(problem)),
        *(groups, str(problem.mask_of), density, relu, packed is not None and packed.is_earlier),
    )
    return result


def _runs_masked(dense: Dense, problem: MaskedConv2dProblem, x: Tensor) -> bool:
    """Whether the operator with the mask runs. Tensors on the CPU and dtypes without kernels are its matter too."""
    if dense is not Dense.AUTO or not x.is_cuda or x.dtype not in DTYPES:
        return dense is not Dense.ALWAYS
    return masked_convolution_pays(problem, x.device)


def _dense(
    problem: MaskedConv2dProblem, x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor
) -> Tensor:
    """By PyTorch's convolution, with its gradients."""
    if problem.mask_of is MaskOf.ANY_INPUT:
        x = zero_outside(x, mask, (problem.mask_block.rows, problem.mask_block.columns))
    found = functional.conv2d(x, weight, bias, groups=problem.groups.count, **_sides(problem))
    if problem.epilogue is ConvEpilogue.BIAS_RELU:
        found = found.relu()
    if problem.mask_of is MaskOf.OUTPUT:
        found = zero_outside(found, mask, (problem.mask_block.rows, problem.mask_block.columns))
    return found.contiguous(memory_format=_format(x))


class MaskedConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` with a mask of spatial blocks for every call; see `masked_conv2d`.

    Attributes:
        mask_block, mask_of, density, dense: as of `masked_conv2d`.
    """

    def __init__(
        self,
        *arguments: Any,
        mask_block: Any = 16,
        mask_of: MaskOf | str = MaskOf.OUTPUT,
        density: float = 0.5,
        dense: Dense | str = Dense.AUTO,
        **options: Any,
    ) -> None:
        """Make a layer; what `torch.nn.Conv2d` takes, and how masks are.

        Raises:
            ConfigError: padding by other than zeros, or by words.
        """
        super().__init__(*arguments, **options)
        if self.padding_mode != "zeros" or isinstance(self.padding, str):
            raise ConfigError("a masked convolution is padded by a number of zeros on each side")
        self.mask_block, self.mask_of, self.density = mask_block, MaskOf(mask_of), density
        self.dense = Dense.parse(dense)

    @classmethod
    def from_dense(cls, layer: nn.Conv2d, **masks: Any) -> MaskedConv2d:
        """The layer with another's weight and bias, which both have from then on.

        Args:
            masks: ``mask_block``, ``mask_of``, ``density`` and ``dense``.
        """
        made = cls(
            *(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride),
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
            device=layer.weight.device,
            dtype=layer.weight.dtype,
            **masks,
        )
        made.weight, made.bias = layer.weight, layer.bias
        return made

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The convolution; without a mask the dense one."""
        if mask is None:
            return super().forward(x)
        return masked_conv2d(
            *(x, self.weight, mask, self.bias),
            block=self.mask_block,
            mask_of=self.mask_of,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            density=self.density,
            dense=self.dense,
        )


def _pair(value: Any) -> list[int]:
    """Rows and columns, of what `masked_conv2d` takes for them."""
    sides = value.split("x") if isinstance(value, str) else value
    sides = list(sides) if isinstance(sides, list | tuple) else [sides]
    return [int(sides[0]), int(sides[-1])]


def _problem(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    block: Any,
    mask_of: MaskOf | str,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    density: float,
    relu: bool,
) -> MaskedConv2dProblem:
    """What the tensors ask for; float64 as float32, which PyTorch computes itself."""
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
        filter_size=FilterSize.parse(tuple(weight.shape[2:])),
        stride=Stride.parse(stride),
        padding=Padding.parse(padding),
        dilation=Dilation.parse(dilation),
        groups=Groups.parse(groups),
        mask_block=MaskBlock.parse(block),
        mask_of=mask_of,
        density=Density.parse(density),
        epilogue=epilogue,
        batch=x.shape[0],
        layout=_layout(x),
    )


def _layout(x: Tensor) -> ImageLayout:
    """The memory order in which images are read, and the result is written."""
    if x.is_contiguous() and not x.is_contiguous(memory_format=torch.channels_last):
        return ImageLayout.NCHW
    return ImageLayout.NHWC


def _format(x: Tensor) -> torch.memory_format:
    """That of the result."""
    return torch.contiguous_format if _layout(x).has_planes else torch.channels_last


@torch.library.custom_op(
    "sparsegen::masked_conv2d",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor words, int[] stride, int[] padding, int[] dilation, "
    "int[] block, int groups, str mask_of, float density, bool relu, bool earlier=False) -> Tensor",
)
def _masked_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    words: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    block: list[int],
    groups: int,
    mask_of: str,
    density: float,
    relu: bool,
    earlier: bool = False,
) -> Tensor:
    problem = _problem(
        x,
        weight,
        bias,
        tuple(block),
        mask_of,
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        density,
        relu,
    )
    device = kernel_device(x)
    if device is None:
        return _plain(problem, x, weight, bias, words)
    if earlier:
        problem = replace(problem, given=Given.EARLIER)
    operator = operators.get(problem, device, is_capturing(x))
    planes = problem.layout.has_planes
    specs = {spec.name: spec for spec in problem.operands(0)}
    images = (x if planes else x.permute(0, 2, 3, 1)).reshape(specs["x"].shape)
    added = {} if bias is None else {"bias": bias}
    live = words.reshape(specs["mask"].shape).view(torch.uint64)
    found = called(operator, [images, weight.permute(0, 2, 3, 1)], live, **added)
    shape = problem.layout.shape(problem.out_height, problem.out_width, problem.filters)
    result: Tensor = found.reshape(problem.batch, *shape)
    return result if planes else result.permute(0, 3, 1, 2)


@_masked_conv2d.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *sides: Any) -> Tensor:
    stride, padding, dilation = sides[:3]
    rows, columns = (
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(2)
    )
    shape = (x.shape[0], weight.shape[0], rows, columns)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_format(x))


def _sides(problem: MaskedConv2dProblem) -> dict[str, tuple[int, int]]:
    """What PyTorch calls stride, padding and dilation."""
    named = (("stride", problem.stride), ("padding", problem.padding), ("dilation", problem.dilation))
    return {name: (side.rows, side.columns) for name, side in named}


def _plain(
    problem: MaskedConv2dProblem, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor
) -> Tensor:
    """By PyTorch alone; 16-bit numbers are multiplied and summed as float32."""
    wide = x.dtype if x.dtype in WIDE else torch.float32
    added = None if bias is None else bias.detach().to(wide)
    if problem.mask_of is MaskOf.ANY_INPUT:
        x = torch.where(live_pixels(words, [problem.mask_block.rows, problem.mask_block.columns], x), x, 0)
    found = functional.conv2d(
        x.detach().to(wide), weight.detach().to(wide), added, groups=problem.groups.count, **_sides(problem)
    )
    if problem.epilogue is ConvEpilogue.BIAS_RELU:
        found = found.relu()
    if problem.mask_of is MaskOf.OUTPUT:
        block = [problem.mask_block.rows, problem.mask_block.columns]
        found = torch.where(live_pixels(words, block, found), found, 0)
    return found.to(x.dtype).contiguous(memory_format=_format(x))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, words, stride, padding, dilation, block, groups, mask_of, density, relu, _ = inputs
    ctx.save_for_backward(x, weight, words, output if relu else None)
    ctx.sides = Sides(stride, padding, dilation, block, groups, density)
    ctx.mask_of, ctx.has_bias = MaskOf(mask_of), bias is not None


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, words, y = ctx.saved_tensors
    if y is not None:
        dy = torch.where(y > 0, dy, 0)
    by_x, by_weights, by_bias = ctx.needs_input_grad[:3]
    needs = by_x, by_weights, ctx.has_bias and by_bias
    found = gradients(dy, x, weight, words, ctx.sides, ctx.mask_of, needs)
    return (*found, *[None] * 10)


_masked_conv2d.register_autograd(_backward, setup_context=_remember)
