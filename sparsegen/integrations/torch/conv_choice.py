"""Whether a convolution with a mask runs our kernel, or PyTorch's dense convolution: both are tried."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.integrations.torch.pattern import DTYPES, kernel_device_of
from sparsegen.integrations.torch.timing import in_turn
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import MaskOf

_decided: dict[tuple[Any, ...], bool] = {}
_lock = threading.Lock()


@torch.compiler.assume_constant_result
def masked_convolution_pays(
    image_shape: tuple[int, ...],
    filter_shape: tuple[int, ...],
    mask_shape: tuple[int, ...],
    sides: tuple[tuple[int, int], ...],
    groups: int,
    mask_of: str,
    density: float,
    has_bias: bool,
    is_channels_last: bool,
    dtype: torch.dtype,
    device: str,
) -> bool:
    """Whether the kernel takes less time than the dense convolution whose result is then set to zero outside the mask.

    On a GPU the first call with these sizes and this density times both on a random mask, forward, and the process
    remembers the answer. It needs memory for the operands beside the layer's own, and leaves PyTorch's generators as
    they are. Inside a CUDA graph's capture nothing can be timed, and sizes that were never met run our kernel, as they
    do on the emulator, which has no time.

    Args:
        sides: rows and columns of stride, padding, dilation and of a block of the mask.
    """
    where = torch.device(device)
    if dtype not in DTYPES:
        return False
    found = kernel_device_of(where)
    if found is None or found.backend == "emulator":
        return True
    key = (
        *(image_shape, filter_shape, mask_shape, sides, groups, mask_of, density, has_bias),
        *(is_channels_last, dtype, where),
    )
    with _lock:
        if key not in _decided:
            if torch.cuda.is_current_stream_capturing():
                return True
            masked, dense = _both(*key)
            _decided[key] = masked < dense
        return _decided[key]


def _both(
    image_shape: tuple[int, ...],
    filter_shape: tuple[int, ...],
    mask_shape: tuple[int, ...],
    sides: tuple[tuple[int, int], ...],
    groups: int,
    mask_of: str,
    density: float,
    has_bias: bool,
    is_channels_last: bool,
    dtype: torch.dtype,
    where: torch.device,
) -> tuple[float, float]:
    """Milliseconds of a call of the kernel and of the dense convolution."""
    generator = torch.Generator(where)
    generator.manual_seed(0)
    order = torch.channels_last if is_channels_last else torch.contiguous_format

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=where, generator=generator)

    x = drawn(*image_shape).to(memory_format=order)
    weight, bias = drawn(*filter_shape), drawn(filter_shape[0]) if has_bias else None
    mask = torch.rand(mask_shape, device=where, generator=generator) < density
    stride, padding, dilation, block = sides

    def masked() -> Tensor:
        words = words_of(mask)
        result: Tensor = torch.ops.sparsegen.masked_conv2d(
            *(x, weight, bias, words, stride, padding, dilation, block, groups, mask_of, density, False)
        )
        return result

    def dense() -> Tensor:
        found = functional.conv2d(x, weight, bias, stride, padding, dilation, groups)
        return zero_outside(found, mask, block) if mask_of == MaskOf.OUTPUT else found

    found = in_turn([masked, dense], where)
    return found[0], found[1]


def zero_outside(images: Tensor, mask: Tensor, block: tuple[int, int]) -> Tensor:
    """Images × channels × height × width with zeros outside of a mask's blocks."""
    wide = mask[:, None].repeat_interleave(block[0], 2).repeat_interleave(block[1], 3)
    return torch.where(wide[:, :, : images.shape[2], : images.shape[3]], images, 0)
