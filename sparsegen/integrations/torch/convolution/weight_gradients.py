"""Gradients of masked convolutions by the weights: by a kernel of ours or by cuDNN, whichever takes less time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device
from sparsegen.integrations.torch.calls.drawn_blocks import drawn_blocks, seeded
from sparsegen.integrations.torch.calls.either import chosen
from sparsegen.integrations.torch.calls.launches import Place, Result, launch_of
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.calls.prepared_operators import operators
from sparsegen.integrations.torch.calls.wide import WIDE
from sparsegen.integrations.torch.convolution.channels_last_gradient import (
    ChannelsLastGradient,
    gradient_with_channels_last,
)
from sparsegen.integrations.torch.convolution.conv_choice import CALLS
from sparsegen.integrations.torch.convolution.conv_problem import Side, layout_of, memory_format, sides_of
from sparsegen.integrations.torch.convolution.dense_convolution import dense_gradients
from sparsegen.integrations.torch.convolution.masked_conv_kernels import by_pixels, live_blocks
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.integrations.torch.convolution.zeroed_pixels import zeroed_copy
from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.measure.decision import Entrants, decide, digest_of
from sparsegen.operators import (
    Density,
    Dilation,
    DType,
    FilterSize,
    Groups,
    MaskBlock,
    MaskedConv2dWeightsProblem,
    Padding,
    Stride,
)
from sparsegen.tuning_db.records import Task

Launch = Callable[..., Tensor]


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
    dense: str = Dense.AUTO,
) -> Launch:
    """Returns the function that computes the operator ``masked_conv2d_weights`` for tensors like these: our kernel, or
    PyTorch's dense gradient where that takes less time, or where there is no kernel.
    """
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
    own = partial(_dense, problem)
    if device is None or not _has_kernel(problem, device):
        return own
    # A capture may load nothing.
    copied = None if is_capturing(x) else gradient_with_channels_last(problem, x, dy, device)
    launched = problem if copied is None else copied
    multiply = partial(_launch, launched, device)

    def ours() -> Launch:
        if copied is None:
            return multiply((x, dy, words))
        return ChannelsLastGradient(problem, copied, (x, dy, words), multiply)

    orders = layout_of(x), layout_of(dy)
    lies_so = copied is None and not any(order.has_planes for order in orders)
    context = "" if lies_so else digest_of(problem, *orders)  # what is copied takes time beside the kernel

    def enter() -> Entrants:
        given = x.detach(), dy.detach(), _drawn_words(problem, x.device)
        pair = partial(ours(), *given), partial(own, *given)
        return Entrants(operators.get(launched, device).launcher.variant, lambda _: pair, CALLS)

    policy = Dense.parse(dense)
    decided = partial(decide, Task.CONVOLUTION, launched, device, enter, policy, context=context)
    return chosen(decided, ours, own)


def _launch(
    problem: MaskedConv2dWeightsProblem, device: Device, tensors: tuple[Tensor, Tensor, Tensor]
) -> Launch:
    """Returns the function that computes the problem where tensors like these lie."""
    p, operator = problem, operators.get(problem, device)
    places: dict[str, Place] = {"x": (0, by_pixels), "dy": (1, by_pixels), "mask": 2}
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


def _dense(problem: MaskedConv2dWeightsProblem, x: Tensor, dy: Tensor, words: Tensor) -> Tensor:
    """The gradient by PyTorch alone; on the CPU 16-bit numbers are multiplied and summed as float32."""
    p, wide = problem, x.dtype if x.is_cuda or x.dtype in WIDE else torch.float32
    *sides, block = sides_of(p)
    live = live_blocks(words, block, (p.out_height, p.out_width))
    gradient = zeroed_copy(dy.detach(), live, block).to(wide)
    shape = p.filters, p.channels // p.groups.count, p.filter_size.rows, p.filter_size.columns
    weight = torch.empty(shape, dtype=wide, device=x.device, memory_format=memory_format(x))
    _, found, _ = dense_gradients(
        gradient, x.detach().to(wide), weight, sides, p.groups.count, (False, True, False)
    )
    assert found is not None
    return found.to(x.dtype).contiguous(memory_format=torch.channels_last)


def _drawn_words(problem: MaskedConv2dWeightsProblem, device: torch.device) -> Tensor:
    """Draws masks of the problem's density."""
    shape = problem.images, *problem.forward.mask_shape
    return PackedMask.of(drawn_blocks(problem.density, shape, seeded(device))).words
