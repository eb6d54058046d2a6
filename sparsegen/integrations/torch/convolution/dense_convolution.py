"""Dense convolutions of PyTorch with a mask, and gradients, by the fastest algorithm of cuDNN.

cuDNN searches it when sizes are first met. Without a search it takes what it estimates to be fast, and may miss the
fastest algorithm by far. PyTorch keeps the algorithm of sizes that a thread has met, however it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional

from sparsegen.integrations.torch.calls.autocast import without_autocast
from sparsegen.integrations.torch.calls.direct import Asked, Context, applied
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.integrations.torch.convolution.conv_problem import memory_format, zero_outside
from sparsegen.integrations.torch.convolution.zeroed_pixels import zeroed, zeroed_copy
from sparsegen.operators import MaskOf
from sparsegen.plan.cudnn_search import CudnnSearch

_SEARCH = CudnnSearch(torch)


def fastest_algorithms(x: Tensor) -> AbstractContextManager[object]:
    """A context in which convolutions of images search; nothing where PyTorch searches anyway, in a graph that is
    traced, or in one that is captured, which a search would break off.
    """
    if is_compiling() or not x.is_cuda or _SEARCH.is_on() or is_capturing(x):
        return nullcontext()
    return _SEARCH


def dense_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    sides: Sequence[Any],
    groups: int,
    mask_of: MaskOf,
    relu: bool,
    what: Asked = Asked.MORE,
) -> Tensor:
    """The masked convolution by PyTorch's dense one, with its gradients.

    Args:
        mask: bools, images × rows × columns of blocks; None if all are live.
        sides: rows and columns of stride, padding, dilation and of a block of the mask.
        what: is asked of the call; where that is nothing, what is computed may be written in place.
    """
    stride, padding, dilation, block = sides
    order, at_once = memory_format(x), what is Asked.NOTHING
    if order is torch.contiguous_format and weight.stride(3) != 1:
        # Filters with channels innermost bring PyTorch to copy images and result; 1 × 1 filters are contiguous as well.
        weight = weight.clone(memory_format=order)
    if mask is not None and mask_of is MaskOf.ANY_INPUT:
        x = zeroed_copy(x, mask, block) if at_once else zero_outside(x, mask, block)
    convolve = _with_gradients if what is Asked.GRADIENT else functional.conv2d
    with without_autocast(x), fastest_algorithms(x):
        found: Tensor = convolve(x, weight, bias, stride, padding, dilation, groups)
    if relu:
        found = found.relu_() if at_once else found.relu()
    found = found.contiguous(memory_format=order)
    if mask is None or mask_of is not MaskOf.OUTPUT:
        return found
    return zeroed(found, mask, block) if at_once else zero_outside(found, mask, block)


def dense_gradients(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    sides: Sequence[Any],
    groups: int,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of a dense convolution by x, by the weights and by the bias, those that are needed.

    Args:
        sides: stride, padding and dilation.
    """
    with fastest_algorithms(dy):
        found: list[Tensor | None] = torch.ops.aten.convolution_backward(
            *(dy, x, weight, weight.shape[:1], *sides, False, (0, 0), groups, needs)
        )
    return found


def _convolved(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    ctx.save_for_backward(x, weight)
    *ctx.sides, ctx.groups = options
    return functional.conv2d(x, weight, bias, *options)


def _gradients_of(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    found = dense_gradients(dy, x, weight, ctx.sides, ctx.groups, ctx.needs_input_grad[:3])
    return *found, None, None, None, None


# PyTorch's convolution, whose gradients cuDNN's own search is on for, too.
_with_gradients = applied("dense_convolution", _convolved, _gradients_of)
