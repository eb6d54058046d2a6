"""Chains of layers of a CNN that carry a mask of spatial blocks with their images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsegen import arguments
from sparsegen.errors import ConfigError, OperandError
from sparsegen.integrations.torch.calls.autocast import cast_like_dense
from sparsegen.integrations.torch.calls.layer_weights import is_called_with_more
from sparsegen.integrations.torch.calls.reach import reach_of
from sparsegen.integrations.torch.calls.tensor_checks import require_real, require_tensors
from sparsegen.integrations.torch.calls.weight_state import WeightState, unchanged, weight_state
from sparsegen.integrations.torch.convolution.conv_problem import pixels_of
from sparsegen.integrations.torch.convolution.masked_conv import masked_conv2d
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.matrix.spatial_mask import both
from sparsegen.operators import Density

# They map zero to zero, so that the part outside the mask stays zero.
ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.GELU, nn.Hardswish, nn.Mish, nn.Tanh, nn.ELU),
    *(nn.Identity, nn.Dropout, nn.Dropout2d),
)
POOLS = (nn.MaxPool2d, nn.AvgPool2d)


class MaskedSequential(nn.Module):
    """Layers one after another, each of which computes the live blocks of its mask; elsewhere its result is zero.

    Convolutions run as `masked_conv2d` with a mask of the output. A batch norm behind one is folded into its weight
    while it evaluates, and a ReLU behind that is part of the same kernel; while it trains, its statistics are those
    of the live pixels. Activations, pools and nearest upsampling follow.

    With ``grows`` a convolution's mask is the one before it, dilated by its reach. Then, without biases and shifts of
    norms, the result is exactly that of the dense layers on images that are zero outside the first mask. Without, masks
    grow only as blocks become coarser: SBNet's way, whose time does not rise from layer to layer.

    Nothing waits for the device, so that CUDA graphs capture the chain and `torch.compile` takes it whole.

    Attributes:
        layers: the given layers; weights belong to them.
        mask_block: pixels of a block, in every layer's own pixels.
        grows: see above.
        density: the expected share of live blocks.
    """

    def __init__(
        self, *layers: nn.Module, mask_block: object = 16, grows: bool = True, density: float = 0.5
    ) -> None:
        """Make a chain.

        Raises:
            ConfigError: a layer that it cannot carry a mask through; the message names it.
        """
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.mask_block = both(mask_block, "mask_block", 1)
        self.grows = arguments.flag(grows, "grows")
        self.density = Density.named(density, "density").share
        self._folded: dict[int, tuple[tuple[WeightState, ...], tuple[Tensor, Tensor]]] = {}
        for number, layer in enumerate(layers):
            _require_known(number, layer)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The images behind the last layer, and their mask.

        Args:
            x: images × channels × height × width; what lies outside the mask should be zero.
            mask: bools, images × rows × columns of blocks (`sparsegen.masks`).

        Raises:
            OperandError, MatrixError: shapes that do not fit.
        """
        require_tensors(x=x, mask=mask)
        if x.dim() != 4 or mask.dim() != 3 or mask.dtype != torch.bool or mask.device != x.device:
            raise OperandError(
                "expected images × channels × height × width, and bools of images × rows × columns of blocks on their "
                f"device, got {tuple(x.shape)} on {x.device} and {mask.dtype} {tuple(mask.shape)} on {mask.device}"
            )
        steps, behind = self._steps((int(x.shape[2]), int(x.shape[3])), mask)
        for step in steps:
            x = step(x)
        return x, behind

    def _steps(self, size: tuple[int, int], mask: Tensor) -> tuple[list[_Step], Tensor]:
        """Returns the steps to compute one after another, and the mask after the last layer.

        All masks are made and packed, and all weights laid out, before the first layer runs: nothing lies between the
        kernels of layers, and one can read them while the one before still ends.
        """
        steps: list[_Step] = []
        packed: PackedMask | None = None  # the mask's, once a layer has made it or wants it
        number, convolutions = 0, 0
        while number < len(self.layers):
            layer, own = self.layers[number], number
            number += 1
            made, size = self._mask_behind(layer, size, mask)
            if made is not None:
                packed, mask = made, made.blocks
            if isinstance(layer, nn.BatchNorm2d):
                steps.append(_Norm(layer, mask, self.mask_block))
            elif not isinstance(layer, nn.Conv2d):
                steps.append(layer)
            else:
                weight, bias, number, relu = self._weights(own, layer)
                device = mask.device
                weight, bias = cast_like_dense(weight, device), cast_like_dense(bias, device)
                packed = PackedMask.of(mask) if packed is None else packed
                live = replace(packed, is_earlier=convolutions > 0)
                steps.append(_Convolution(layer, weight, bias, relu, live, self.mask_block, self.density))
                convolutions += 1
        return steps, mask

    def _weights(self, number: int, conv: nn.Conv2d) -> tuple[Tensor, Tensor | None, int, bool]:
        """Weight and bias with a norm that is folded in, the number of the next layer, whether a ReLU is fused."""
        weight, bias, after = conv.weight, conv.bias, number + 1
        norm = self.layers[after] if after < len(self.layers) else None
        if isinstance(norm, nn.BatchNorm2d) and not norm.training and norm.track_running_stats:
            (weight, bias), after = self._with_norm(number, conv, norm), after + 1
        relu = bias is not None and after < len(self.layers) and isinstance(self.layers[after], nn.ReLU)
        return weight.contiguous(memory_format=torch.channels_last), bias, after + relu, relu

    def _with_norm(self, number: int, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Weight and bias with the norm in them; kept while nothing changes and no gradient is recorded."""
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None and variance is not None
        given = (conv.weight, conv.bias, mean, variance, norm.weight, norm.bias)
        keeps = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        keeps = keeps and not any(
            t is not None and t.is_inference() for t in given
        )  # whose changes nobody counts
        known = self._folded.get(number) if keeps else None
        if known is not None and unchanged(given, known[0]):
            return known[1]
        scale = torch.rsqrt(variance + norm.eps) * (1 if norm.weight is None else norm.weight)
        shift = -mean if conv.bias is None else conv.bias - mean
        bias = shift * scale + (0 if norm.bias is None else norm.bias)
        dtype = conv.weight.dtype
        folded = (conv.weight * scale.reshape(-1, 1, 1, 1)).to(dtype)
        found = folded.contiguous(memory_format=torch.channels_last), bias.to(dtype)
        if keeps:
            self._folded[number] = tuple(map(weight_state, given)), found
        return found

    def _mask_behind(
        self, layer: nn.Module, size: tuple[int, int], mask: Tensor
    ) -> tuple[PackedMask | None, tuple[int, int]]:
        """The mask of what a layer makes of images of a size, None where it is the one before, and its size."""
        if isinstance(layer, nn.Upsample):
            scale: Any = layer.scale_factor  # no None: `_require_known` refuses it
            rows, columns = scale if isinstance(scale, tuple) else (scale, scale)
            out = (int(size[0] * rows), int(size[1] * columns))
            return PackedMask.resized(mask, size, self.mask_block, out), out
        if not isinstance(layer, (nn.Conv2d, *POOLS)):
            return None, size
        reach = reach_of(layer)
        out = reach.output_size(size)
        if isinstance(layer, nn.Conv2d) and not self.grows:
            if reach.stride == (1, 1) and out == size:
                return None, size
            return PackedMask.resized(mask, size, self.mask_block, out), out
        return PackedMask.behind(mask, size, self.mask_block, reach), out


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution with what is folded into it and its mask."""

    layer: nn.Conv2d
    weight: Tensor
    bias: Tensor | None
    relu: bool
    mask: PackedMask
    block: tuple[int, int]
    density: float

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        return masked_conv2d(
            *(cast_like_dense(x, x.device), self.weight, self.mask, self.bias),
            block=self.block,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            density=self.density,
            relu=self.relu,
        )


@dataclass(frozen=True, slots=True)
class _Norm:
    """A batch norm of the live pixels."""

    layer: nn.BatchNorm2d
    mask: Tensor
    block: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        return masked_batch_norm(x, pixels_of(self.mask, self.block, x), self.layer)


_Step = Callable[[Tensor], Tensor]


def masked_sequential(*layers: nn.Module, **options: Any) -> MaskedSequential:
    """A `MaskedSequential` of layers, or of those of one `torch.nn.Sequential`.

    Args:
        options: ``mask_block``, ``grows`` and ``density``.
    """
    if len(layers) == 1 and isinstance(layers[0], nn.Sequential):
        layers = tuple(layers[0])
    return MaskedSequential(*layers, **options)


def masked_batch_norm(x: Tensor, live: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    """A batch norm of the live pixels alone; the others are zero.

    While the norm trains, mean and variance are those of the live pixels (1 at least counts), and its running
    statistics follow them.

    Args:
        x: images × channels × height × width; zero where it is not live.
        live: bools, images × 1 × height × width.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit.
    """
    require_tensors(x=x, live=live)
    arguments.instance(norm, nn.BatchNorm2d, "norm", OperandError)
    require_real(x, "x")
    if x.dim() != 4 or x.shape[1] != norm.num_features:
        raise OperandError(
            f"x: expected images × {norm.num_features} channels, as the norm has, × height × width, got "
            f"{tuple(x.shape)}"
        )
    if live.dtype != torch.bool or live.shape != (x.shape[0], 1, *x.shape[2:]) or live.device != x.device:
        raise OperandError(
            f"live: expected bools of shape {(x.shape[0], 1, *x.shape[2:])} on {x.device}, got {live.dtype} of shape "
            f"{tuple(live.shape)} on {live.device}"
        )
    if norm.training or not norm.track_running_stats:
        wide, weights = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x, live.to(x.dtype)
        count = live.sum().clamp(min=1)
        mean = (wide * weights).sum((0, 2, 3)) / count
        centred = (wide - mean[:, None, None]) * weights
        variance = centred.square().sum((0, 2, 3)) / count
        if norm.training and norm.track_running_stats:
            _follow(norm, mean.detach(), (variance * (count / (count - 1).clamp(min=1))).detach())
    else:
        assert norm.running_mean is not None and norm.running_var is not None
        mean, variance = norm.running_mean, norm.running_var
    scale = torch.rsqrt(variance + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
    found = x * scale[:, None, None] + shift[:, None, None]
    return torch.where(live, found, 0).to(x.dtype)


def _follow(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
    assert norm.running_mean is not None and norm.running_var is not None
    assert norm.num_batches_tracked is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        share = norm.momentum if norm.momentum is not None else 1.0 / norm.num_batches_tracked
        norm.running_mean.add_((mean - norm.running_mean) * share)
        norm.running_var.add_((variance - norm.running_var) * share)


def _require_known(number: int, layer: nn.Module) -> None:
    name = f"layer {number} ({type(layer).__name__})"
    if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d)) and is_called_with_more(layer):
        raise ConfigError(
            f"{name}: hooks and a forward of its own do not run here, such as those of torch.nn.utils.prune: remove "
            "them first (torch.nn.utils.prune.remove)"
        )
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        raise ConfigError(f"{name}: a masked convolution is padded by a number of zeros on each side")
    if isinstance(layer, POOLS) and layer.ceil_mode:
        raise ConfigError(f"{name}: pools round sizes down here: make it with ceil_mode=False")
    if isinstance(layer, nn.Upsample) and (layer.mode != "nearest" or layer.scale_factor is None):
        raise ConfigError(f"{name}: upsampling is by a scale_factor and to the nearest pixel here")
    if not isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, nn.Upsample, *POOLS, *ELEMENTWISE)):
        raise ConfigError(
            f"{name}: masks go through convolutions, batch norms, pools, nearest upsampling and activations that are 0 "
            "at 0; run others on what `forward` returns"
        )
