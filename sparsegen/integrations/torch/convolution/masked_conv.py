"""A convolution with a mask of spatial blocks for every call, as a function and as a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.calls.autocast import cast_like_dense
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.convolution import masked_conv_operators
from sparsegen.integrations.torch.convolution.conv_choice import (
    dense_convolution,
    has_choice,
    runs_masked_in_graph,
    runs_masked_kernel,
    sizes_of,
)
from sparsegen.integrations.torch.convolution.conv_problem import memory_format, problem_of, sides_of
from sparsegen.integrations.torch.convolution.padding import padding_in_numbers
from sparsegen.integrations.torch.pattern.layer_weights import keep_hooks, own_parameter
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import (
    Density,
    MaskBlock,
    MaskOf,
    member,
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
    require_tensors(x=x, weight=weight, mask=mask, bias=bias)
    relu = arguments.flag(relu, "relu", OperandError)
    if relu and bias is None:
        raise OperandError("relu=True needs a bias: use torch.relu on the result without one")
    if mask.dtype != torch.bool or mask.dim() != 3 or mask.device != x.device:
        raise OperandError(
            f"mask: expected bools, images × rows × columns of blocks, on {x.device}, got {mask.dtype} of shape "
            f"{tuple(mask.shape)} on {mask.device}"
        )
    sides: Sequence[Any] = stride, padding, dilation, block
    if torch.compiler.is_compiling():  # a problem is no tensor: operators make and check it when they run
        sides = [_pair(side) for side in sides]
        tried = sizes_of(x, weight) if dense == Dense.AUTO and has_choice(x) else None
        runs_masked = runs_masked_in_graph(
            *(str(dense), tried, bias is not None, x.dtype, str(x.device), memory_format(x)),
            *(tuple(map(tuple, sides)), groups, str(mask_of), density, relu),
        )
    else:
        problem = problem_of(x, weight, bias, sides, groups, mask_of, density, relu)
        wanted = problem.batch, *problem.mask_shape
        if tuple(mask.shape) != wanted:
            raise OperandError(
                f"mask: expected {wanted} blocks of {problem.mask_block}, got {tuple(mask.shape)}"
            )
        sides, groups = sides_of(problem), problem.groups.count
        runs_masked = runs_masked_kernel(Dense.parse(dense), problem if has_choice(x) else None, x.device)
    if not runs_masked:
        return dense_convolution(x, weight, bias, mask, sides, groups, MaskOf(mask_of), relu)
    result: Tensor = masked_conv_operators.masked_conv2d(
        *(x, weight, bias, words_of(mask) if packed is None else packed.words, *sides),
        *(groups, str(mask_of), density, relu, packed is not None and packed.is_earlier),
    )
    return result


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
            ConfigError: padding by other than zeros, or by more of them on one side; a block, mask_of, density or dense
                that is none.
        """
        super().__init__(*arguments, **options)
        if self.padding_mode != "zeros":
            raise ConfigError("a masked convolution is padded by a number of zeros on each side")
        self.padding = padding_in_numbers(self.padding, self.kernel_size, self.dilation)
        block = MaskBlock.named(mask_block, "mask_block")
        self.mask_block = block.rows, block.columns
        self.mask_of = member(MaskOf, mask_of, "mask_of")
        self.density = Density.named(density, "density").share
        self.dense = Dense.parse(dense)

    @classmethod
    def from_dense(cls, layer: nn.Conv2d, **masks: Any) -> MaskedConv2d:
        """The layer with another's weight and bias, which both have from then on.

        Args:
            masks: ``mask_block``, ``mask_of``, ``density`` and ``dense``.

        Raises:
            OperandError: no `torch.nn.Conv2d`.
            ConfigError: as for a new layer.
        """
        arguments.instance(layer, nn.Conv2d, "layer", OperandError)
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
        made.weight, made.bias = own_parameter(layer), layer.bias
        keep_hooks(layer, made)
        return made

    def extra_repr(self) -> str:
        rows, columns = self.mask_block
        own = f"mask_block={rows}x{columns}, mask_of={self.mask_of}, density={self.density:g}"
        return f"{nn.Conv2d.extra_repr(self)}, {own}"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The convolution, with operands cast under autocast; without a mask, and of no images, the dense one."""
        require_tensors(x=x)
        if x.dim() not in (3, 4):
            raise OperandError(
                f"x: expected images × channels × rows × columns, or one image, got shape {tuple(x.shape)}"
            )
        if mask is None or not x.shape[0]:
            return super().forward(x)
        device = x.device
        x, weight = cast_like_dense(x, device), cast_like_dense(self.weight, device)
        bias = cast_like_dense(self.bias, device)
        return masked_conv2d(
            *(x, weight, mask, bias),
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
