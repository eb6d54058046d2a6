"""Submanifold convolutions of points, as custom operators of PyTorch and as a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.autocast import cast_like_dense, without_autocast
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.direct import Context, DirectOperator
from sparsegen.integrations.torch.calls.prepared import VECTOR_BYTES, is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import called, operators
from sparsegen.integrations.torch.calls.row_copies import padded_to
from sparsegen.integrations.torch.calls.tensor_checks import (
    check_tensor,
    checked_device,
    require_parameter_dtype,
    require_real,
    require_tensors,
)
from sparsegen.integrations.torch.calls.wide import widened
from sparsegen.integrations.torch.points.kernel_maps import KernelMap
from sparsegen.integrations.torch.points.whole_vectors import Convolution, padded
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.matrix.kernel_map import odd_sides
from sparsegen.operators import (
    ConvEpilogue,
    Density,
    FilterVolume,
    Problem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)

USUAL_DENSITY = 0.3


def submanifold_conv3d(
    x: Tensor,
    weight: Tensor,
    kernel_map: KernelMap,
    bias: Tensor | None = None,
    *,
    density: float = USUAL_DENSITY,
    relu: bool = False,
) -> Tensor:
    """The convolution of points at the points themselves (Graham et al., CVPR 2018).

    On a GPU it is one kernel over the kernel map's lists, without a wait, and so is each gradient: the one by x is the
    same convolution by the opposite taps, the one by the weights a product for each tap. Elsewhere PyTorch gathers,
    multiplies and adds up tap by tap.

    Args:
        x: points × channels.
        weight: filters × taps along z, y and x × channels, of x's dtype and device.
        kernel_map: map of the points' coordinates, `KernelMap.of`.
        bias: a value for each filter.
        density: the expected share of taps that meet a point, by which kernels are chosen.
        relu: set negative results to zero. It needs a bias.

    Returns:
        points × filters.

    Raises:
        OperandError, ConfigError: shapes, dtypes or devices that do not fit.
    """
    arguments.instance(kernel_map, KernelMap, "kernel_map", OperandError)
    require_tensors(x=x, weight=weight, bias=bias)
    require_real(x, "x")
    relu = arguments.flag(relu, "relu", OperandError)
    if relu and bias is None:
        raise OperandError("relu=True needs a bias: use torch.relu on the result without one")
    if x.dim() != 2 or x.shape[0] != kernel_map.points or x.device != kernel_map.words.device:
        raise OperandError(
            f"x: expected {kernel_map.points} points × channels on {kernel_map.words.device}, as the kernel map has, "
            f"got shape {tuple(x.shape)} on {x.device}"
        )
    check_tensor(weight, "weight", (None, *kernel_map.filter_size, x.shape[1]), x, free="filters")
    if bias is not None:
        check_tensor(bias, "bias", (weight.shape[0],), x)
    share = Density.named(density, "density").share
    result: Tensor = _conv(x, weight, kernel_map.words, bias, share, relu)
    return result


class SubmanifoldConv3d(nn.Module):
    """A layer that convolves points at the points themselves; see `submanifold_conv3d`.

    Attributes:
        weight: filters × taps along z, y and x × channels.
        bias: a value for each filter, or None.
        filter_size: taps along z, y and x.
        density: see `submanifold_conv3d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        filter_size: Any = 3,
        *,
        bias: bool = True,
        density: float = USUAL_DENSITY,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """Make a layer with weights as `torch.nn.Conv3d` draws them.

        Raises:
            ConfigError: channels below 1, or no density.
            MatrixError: a filter size that is not odd or too large.
            OperandError: a device that PyTorch cannot use, or no dtype.
        """
        super().__init__()
        in_channels = arguments.whole(in_channels, "in_channels", least=1, most=MAX_INDEX)
        out_channels = arguments.whole(out_channels, "out_channels", least=1, most=MAX_INDEX)
        self.filter_size = odd_sides(filter_size, "filter_size")
        self.density = Density.named(density, "density").share
        device = checked_device(device)
        if dtype is not None:
            require_parameter_dtype(dtype)
        shape = (out_channels, *self.filter_size, in_channels)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        has_bias = arguments.flag(bias, "bias")
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if has_bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and bias anew."""
        bound = 1 / math.sqrt(self.weight[0].numel())
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, kernel_map: KernelMap) -> Tensor:
        """The convolution of points with this kernel map. Under autocast operands are cast like a dense layer's."""
        require_tensors(x=x)
        device = x.device
        x, weight = cast_like_dense(x, device), cast_like_dense(self.weight, device)
        bias = cast_like_dense(self.bias, device)
        return submanifold_conv3d(x, weight, kernel_map, bias, density=self.density)

    def extra_repr(self) -> str:
        """Channels and taps."""
        return f"{self.weight.shape[-1]}, {self.weight.shape[0]}, filter_size={self.filter_size}"


# --- the custom operators, each the gradient of the others ---


def _conv_of(
    x: Tensor, weight: Tensor, words: Tensor, bias: Tensor | None, density: float, relu: bool
) -> Tensor:
    if not x.shape[0]:
        return x.new_empty((0, weight.shape[0]))
    device = kernel_device(x)
    if device is None:
        return _plain_conv(x, weight, words, bias, relu)
    epilogue = ConvEpilogue.NONE if bias is None else ConvEpilogue.BIAS_RELU if relu else ConvEpilogue.BIAS
    sizes = words.shape[1], x.shape[1], weight.shape[0]
    problem = _problem(
        SubmanifoldConv3dProblem, sizes, x.dtype, weight.shape[1:4], density, epilogue=epilogue
    )
    added = {} if bias is None else {"bias": bias}
    if x.shape[1] * x.itemsize % VECTOR_BYTES and (wider := padded(problem, device)) is not None:
        problem = wider
        x, weight = (padded_to(one, (*one.shape[:-1], wider.channels)) for one in (x, weight))
    # Detached: behind a function of autograd's no view may be changed in place.
    return _run(problem, device, [x, weight], words, added)[: x.shape[0]].detach()


def _weights_of(x: Tensor, dy: Tensor, words: Tensor, filter_size: tuple[int, ...], density: float) -> Tensor:
    if not x.shape[0]:
        return x.new_zeros((dy.shape[1], *filter_size, x.shape[1]))
    device = kernel_device(x)
    if device is None:
        return _plain_weights(x, dy, words, filter_size)
    sizes = words.shape[1], x.shape[1], dy.shape[1]
    problem = _problem(SubmanifoldConv3dWeightsProblem, sizes, x.dtype, filter_size, density)
    wider = padded(problem, device)
    if wider is None:
        return _run(problem, device, [x, dy], words, {})
    sides = (x, wider.channels), (dy, wider.filters)
    given = [padded_to(one, (len(one), channels)) for one, channels in sides]
    return _run(wider, device, given, words, {})[: dy.shape[1], ..., : x.shape[1]].contiguous()


@lru_cache(maxsize=1024)
def _problem(
    kind: Callable[..., Convolution],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    filter_size: tuple[int, ...],
    density: float,
    **epilogue: ConvEpilogue,
) -> Convolution:
    """The problem of tensors that were checked, which takes longer to make than a call."""
    return kind(*sizes, DTYPES[dtype], FilterVolume(*filter_size), Density.parse(density), **epilogue)


def _run(
    problem: Problem, device: Device, given: list[Tensor], words: Tensor, added: dict[str, Tensor]
) -> Tensor:
    """Runs the operator of a problem on tensors."""
    operator = operators.get(problem, device, is_capturing(words))
    return called(operator, given, words, **added)


def _opposite(weight: Tensor) -> Tensor:
    """The filters of the gradient by x: channels × taps in the opposite order × filters."""
    return weight.flip(1, 2, 3).permute(4, 1, 2, 3, 0).contiguous()


def _pairs(words: Tensor) -> list[tuple[Tensor, Tensor]]:
    return KernelMap(0, (1, 1, 1), words).pairs()


def _plain_conv(x: Tensor, weight: Tensor, words: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Computes the convolution by PyTorch alone, tap by tap; 16-bit numbers are multiplied and summed as float32."""
    wide, filters = widened(x), widened(weight).flatten(1, 3)
    found = wide.new_zeros(x.shape[0], weight.shape[0])
    with without_autocast(x):  # sums stay wide
        for tap, (outputs, inputs) in enumerate(_pairs(words)):
            found.index_add_(0, outputs, wide[inputs] @ filters[:, tap].t())
    if bias is not None:
        found += widened(bias)
    return (found.relu() if relu else found).to(x.dtype)


def _plain_weights(x: Tensor, dy: Tensor, words: Tensor, filter_size: tuple[int, ...]) -> Tensor:
    """Computes the gradient by the weights by PyTorch alone, tap by tap."""
    wide, gradient = widened(x), widened(dy)
    found = [gradient[outputs].t() @ wide[inputs] for outputs, inputs in _pairs(words)]
    return torch.stack(found, 1).reshape(dy.shape[1], *filter_size, x.shape[1]).to(x.dtype)


def _remember_conv(ctx: Context, inputs: Sequence[Any], output: Tensor) -> None:
    x, weight, words, bias, density, relu = inputs
    ctx.save_for_backward(x, weight, words, output if relu else None)
    ctx.density, ctx.has_bias = density, bias is not None


def _conv_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, words, y = ctx.saved_tensors
    if y is not None:
        dy = torch.where(y > 0, dy, 0)
    dy = dy.contiguous()
    dx = dw = db = None
    if ctx.needs_input_grad[0]:
        dx = _conv(dy, _opposite(weight), words, None, ctx.density, False)
    if ctx.needs_input_grad[1]:
        dw = _weights(x, dy, words, tuple(weight.shape[1:4]), ctx.density)
    if ctx.has_bias and ctx.needs_input_grad[3]:
        db = dy.sum(0)
    return dx, dw, None, db, None, None


def _remember_weights(ctx: Context, inputs: Sequence[Any], output: Tensor) -> None:
    x, dy, words, _, ctx.density = inputs
    ctx.save_for_backward(x, dy, words)


def _weights_backward(ctx: Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, dy, words = ctx.saved_tensors
    gradient = gradient.contiguous()
    needs = ctx.needs_input_grad
    dx = _conv(dy, _opposite(gradient), words, None, ctx.density, False) if needs[0] else None
    ddy = _conv(x, gradient, words, None, ctx.density, False) if needs[1] else None
    return dx, ddy, None, None, None


_conv = DirectOperator(
    "submanifold_conv3d",
    "(Tensor x, Tensor weight, Tensor words, Tensor? bias, float density, bool relu) -> Tensor",
    _conv_of,
    fake=lambda x, weight, *_: x.new_empty((x.shape[0], weight.shape[0])),
    tensors=4,
    backward=_conv_backward,
    remember=_remember_conv,
)
_weights = DirectOperator(
    "submanifold_conv3d_weights",
    "(Tensor x, Tensor dy, Tensor words, int[] filter_size, float density) -> Tensor",
    _weights_of,
    fake=lambda x, dy, words, filter_size, density: x.new_empty((dy.shape[1], *filter_size, x.shape[1])),
    tensors=3,
    backward=_weights_backward,
    remember=_remember_weights,
)
