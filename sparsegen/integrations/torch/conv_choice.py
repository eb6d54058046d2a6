"""Whether a convolution with a mask runs our kernel, or PyTorch's dense convolution: both are tried."""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.integrations.torch.pattern import kernel_device_of
from sparsegen.integrations.torch.timing import in_turn
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import MaskedConv2dProblem, MaskOf

Side = tuple[int, int]

_decided: dict[tuple[MaskedConv2dProblem, torch.device], bool] = {}
_lock = threading.Lock()


def masked_convolution_pays(problem: MaskedConv2dProblem, device: torch.device) -> bool:
    """Whether the kernel takes less time than the dense convolution whose result is then set to zero outside the mask.

    On a GPU the first call with this problem times both on a random mask of its density, forward, and the process
    remembers the answer. It needs memory for the operands beside the layer's own, and leaves PyTorch's generators as
    they are. Inside a CUDA graph's capture nothing can be timed, and problems that were never met run our kernel, as
    they do on the emulator, which has no time.
    """
    found = kernel_device_of(device)
    if found is None or found.backend == "emulator":
        return True
    key = problem, device
    with _lock:
        if key not in _decided:
            if torch.cuda.is_current_stream_capturing():
                return True
            masked, dense = _both(*key)
            _decided[key] = masked < dense
        return _decided[key]


def _both(problem: MaskedConv2dProblem, where: torch.device) -> tuple[float, float]:
    """Milliseconds of a call of the kernel and of the dense convolution."""
    p, dtype = problem, getattr(torch, problem.dtype.value)
    generator = torch.Generator(where)
    generator.manual_seed(0)
    order = torch.contiguous_format if p.layout.has_planes else torch.channels_last

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=where, generator=generator)

    x = drawn(p.batch, p.channels, p.height, p.width).to(memory_format=order)
    weight = drawn(p.filters, p.group_channels, p.filter_size.rows, p.filter_size.columns)
    bias = drawn(p.filters) if p.epilogue.has_bias else None
    mask = torch.rand((p.batch, *p.mask_shape), device=where, generator=generator) < p.density.share
    sides = stride, padding, dilation, block = sides_of(p)

    def masked() -> Tensor:
        words = words_of(mask)
        result: Tensor = torch.ops.sparsegen.masked_conv2d(
            *(x, weight, bias, words, *sides, p.groups.count, p.mask_of.value, p.density.share, False)
        )
        return result

    def dense() -> Tensor:
        images = zero_outside(x, mask, block) if p.mask_of is MaskOf.ANY_INPUT else x
        found = functional.conv2d(images, weight, bias, stride, padding, dilation, p.groups.count)
        return zero_outside(found, mask, block) if p.mask_of is MaskOf.OUTPUT else found

    found = in_turn([masked, dense], where)
    return found[0], found[1]


def sides_of(problem: MaskedConv2dProblem) -> tuple[Side, Side, Side, Side]:
    """Rows and columns of stride, padding, dilation and of a block of the mask, as the operator takes them."""
    p = problem
    stride, padding, dilation, block = (
        (side.rows, side.columns) for side in (p.stride, p.padding, p.dilation, p.mask_block)
    )
    return stride, padding, dilation, block


def zero_outside(images: Tensor, mask: Tensor, block: tuple[int, int]) -> Tensor:
    """Images × channels × height × width with zeros outside of a mask's blocks."""
    wide = mask[:, None].repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    return torch.where(wide[:, :, : images.shape[2], : images.shape[3]], images, 0)
