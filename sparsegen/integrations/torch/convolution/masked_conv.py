"""A convolution with a mask of spatial blocks for every call, as a function and as a layer."""

from __future__ import annotations

from marshal import dumps
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from sparsegen import arguments
from sparsegen.dispatch.options import Dense
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.calls.autocast import cast_like_dense, is_any_autocast
from sparsegen.integrations.torch.calls.direct import PLAIN, Asked, asked, is_watched
from sparsegen.integrations.torch.calls.launches import calls
from sparsegen.integrations.torch.calls.layer_weights import conv_options, keep_hooks, own_parameters
from sparsegen.integrations.torch.calls.reach import padding_in_numbers
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.integrations.torch.convolution import masked_conv_operators
from sparsegen.integrations.torch.convolution.conv_call import ConvCall, check
from sparsegen.integrations.torch.convolution.conv_choice import (
    policy_for,
    runs_masked_in_graph,
    sizes_of,
)
from sparsegen.integrations.torch.convolution.conv_problem import memory_format
from sparsegen.integrations.torch.convolution.dense_convolution import dense_convolution
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import (
    Density,
    MaskBlock,
    MaskOf,
    member,
)


def masked_conv2d(
    x: Tensor,
    weight: Tensor,
    mask: Tensor | PackedMask,
    bias: Tensor | None = None,
    *,
    block: object = 16,
    mask_of: MaskOf | str = MaskOf.OUTPUT,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
    density: float = 0.5,
    relu: bool = False,
    dense: Dense | str = Dense.AUTO,
) -> Tensor:
    """Convolution restricted by a block mask over its output or its input.

    A mask of the output names the blocks to compute; the others are zero. A mask of the input names the blocks that are
    not zero: x must be zero outside of it, or with ``"any_input"`` counts as zero there. Images in
    `torch.channels_last` are read where they lie; in 16 bits contiguous ones, and channels that are no multiple of 8,
    are copied where that should take less time, pixels that live blocks need alone. Other images, such as slices, are
    copied to `torch.channels_last`. Gradients are kernels over live blocks too, but for the one by x where the
    convolution has a stride, or a mask of the input: that one is dense.

    Args:
        x: images × channels × height × width.
        weight: filters × channels of a group × rows × columns, of x's dtype and device.
        mask: bools, images × rows × columns of blocks (`sparsegen.masks`); or packed beforehand, for several layers.
        bias: a value for each filter.
        block: pixels of a block of the mask: a number, two, or text such as ``"8x16"``.
        density: the expected share of live blocks, by which the kernel is chosen.
        relu: set negative results to zero. It needs a bias.
        dense: use PyTorch's own convolution, by the algorithm that cuDNN finds fastest, and set its result to zero
            outside the mask. ``"auto"``: if it takes less time, which is tried when sizes are first met on a GPU
            (`sparsegen.measure.decision`). Gradients of the kernel go by it too, each by its own times.

    Returns:
        images × filters × height × width, in x's memory format.

    Raises:
        OperandError, ConfigError: shapes, dtypes, devices or sides that do not fit.
    """
    blocks, words, earlier, whole = (
        (mask.blocks, mask.words, mask.is_earlier, mask.is_whole)
        if isinstance(mask, PackedMask)
        else (mask, None, False, False)
    )
    sides: tuple[Any, ...] = stride, padding, dilation, block
    options: Any = sides, groups, mask_of, density, relu, dense
    if (
        type(x) not in PLAIN
        or type(weight) not in PLAIN
        or type(blocks) not in PLAIN
        or (bias is not None and type(bias) not in PLAIN)
    ):
        require_tensors(x=x, weight=weight, mask=blocks, bias=bias)
    tensors = x, weight, bias, blocks, words
    watched, kind = is_watched(), None
    if not (watched and is_compiling()):  # a compiler reads no bytes
        try:  # as bytes 1, 1.0 and True differ, as they do to the checks; of version 2 equal objects have equal ones
            kind = masked_conv2d, earlier, whole, dumps((sides, groups, density, relu), 2), mask_of, dense
            hash(kind)
        except (TypeError, ValueError):  # other objects, such as symbolic sizes, are not cached
            kind = None
    latest = None if watched or kind is None else calls.latest(kind, tensors)
    if latest is not None and latest.asked is not Asked.MORE:
        call: ConvCall = latest.target
        wanted = latest.asked if torch.is_grad_enabled() else Asked.NOTHING
        if wanted is Asked.NOTHING and words is not None and call.launch is not None and call.runs_kernel:
            return call.launch(x, weight, bias, words)
        return call(wanted, x, weight, bias, blocks, words)
    what = asked(*tensors)
    if (
        what is Asked.MORE and is_compiling()
    ):  # a problem is no tensor: operators make and check it when they run
        return _traced(x, weight, blocks, bias, words, earlier, whole, *options)
    made_with = *tensors, earlier, whole, *options
    call = ConvCall.of(*made_with) if kind is None else calls.target(kind, tensors, ConvCall.of, made_with)
    return call(what, x, weight, bias, blocks, words)


def _traced(
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    bias: Tensor | None,
    words: Tensor | None,
    is_earlier: bool,
    is_whole: bool,
    sides: tuple[object, ...],
    groups: int,
    mask_of: MaskOf | str,
    density: float,
    relu: bool,
    dense: Dense | str,
) -> Tensor:
    """The same while a graph is traced."""
    require_tensors(x=x, weight=weight, mask=mask, bias=bias)
    check(bias, mask, x, relu)
    pairs = [_pair(side) for side in sides]
    policy = policy_for(dense, x)
    tried = sizes_of(x, weight) if policy is Dense.AUTO else None
    runs_masked = runs_masked_in_graph(
        *(str(policy), is_whole, tried, bias is not None, x.dtype, str(x.device), memory_format(x)),
        *(tuple(map(tuple, pairs)), groups, str(mask_of), density, relu),
    )
    if not runs_masked:
        live = None if is_whole else mask
        return dense_convolution(x, weight, bias, live, pairs, groups, MaskOf(mask_of), relu)
    result: Tensor = masked_conv_operators.masked_conv2d(
        *(x, weight, bias, words_of(mask) if words is None else words, *pairs),
        *(groups, str(mask_of), density, relu, is_earlier, str(Dense.NEVER if is_whole else policy)),
    )
    return result


class MaskedConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` with a mask of spatial blocks for every call; see `masked_conv2d`.

    Attributes:
        mask_block, mask_of, density, dense: see `masked_conv2d`.
        padding: zeros on each side, in numbers also where it was given as a word.
    """

    padding: Any

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
            ConfigError: see the constructor.
        """
        arguments.instance(layer, nn.Conv2d, "layer", OperandError)
        made = cls(
            *(layer.in_channels, layer.out_channels, layer.kernel_size),
            **conv_options(layer),
            device=layer.weight.device,
            dtype=layer.weight.dtype,
            **masks,
        )
        made.weight, made.bias = own_parameters(layer)
        keep_hooks(layer, made)
        return made

    def extra_repr(self) -> str:
        rows, columns = self.mask_block
        own = f"mask_block={rows}x{columns}, mask_of={self.mask_of}, density={self.density:g}"
        return f"{nn.Conv2d.extra_repr(self)}, {own}"

    def forward(self, x: Tensor, mask: Tensor | PackedMask | None = None) -> Tensor:
        """The convolution, with operands cast under autocast; without a mask, and of no images, the dense one."""
        require_tensors(x=x)
        if x.ndim not in (3, 4):
            raise OperandError(
                f"x: expected images × channels × rows × columns, or one image, got shape {tuple(x.shape)}"
            )
        if mask is None or not x.shape[0]:
            return super().forward(x)
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if is_any_autocast():
            device = x.device
            x, weight = cast_like_dense(x, device), cast_like_dense(weight, device)
            bias = cast_like_dense(bias, device)
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
