"""Pixels that convolutions and pools read; padding, which PyTorch takes as numbers and as words."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import nn
from torch.compiler import is_compiling

from sparsegen.errors import ConfigError
from sparsegen.matrix.spatial_mask import Reach


def padding_in_numbers(
    padding: object, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, int]:
    """The zeros above and below, left and right, of a convolution's padding; of ``"same"`` and ``"valid"`` too.

    Raises:
        ConfigError: ``"same"`` of a filter that needs one more zero on one side than on the other.
    """
    if padding == "valid":
        return 0, 0
    if padding != "same":
        return padding if isinstance(padding, tuple) else (padding, padding)
    both = [reach * (size - 1) for size, reach in zip(kernel, dilation, strict=True)]
    if any(zeros % 2 for zeros in both):
        raise ConfigError(
            f"padding='same' of a filter of {kernel[0]} × {kernel[1]} is wider on one side than on the other; pad with "
            "torch.nn.ZeroPad2d before a convolution of padding=0"
        )
    return both[0] // 2, both[1] // 2


def reach_of(layer: nn.Module) -> Reach:
    """Returns the input pixels that an output pixel of a convolution or a pool reads."""
    kernel, stride, dilation = (
        _pair(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "dilation")
    )
    make = Reach if is_compiling() else _checked  # a compiler keeps no caches, and warns of them
    return make(kernel, stride, padding_in_numbers(layer.padding, kernel, dilation), dilation)


@lru_cache(maxsize=256)
def _checked(
    kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Reach:
    """A reach, whose checks take longer than a launch."""
    return Reach(kernel, stride, padding, dilation)


def _pair(value: Any) -> tuple[int, int]:
    return (value[0], value[1]) if isinstance(value, tuple | list) else (value, value)
