"""Tensor maps as the emulator's TMA reads them; tensor_map.h has the same structure."""

from __future__ import annotations

import struct

from sparsegen.kernels.tensor_map import MOST_DIMENSIONS, TensorMap

MAP_ALIGNMENT = 64
LAYOUT = struct.Struct(f"<Q{MOST_DIMENSIONS}Q{3 * MOST_DIMENSIONS}I3I8x")


def encoded(tensor_map: TensorMap, address: int = 0) -> bytes:
    """The map of an array at an address, as kernels take it by value."""

    def padded(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return numbers + (1,) * (MOST_DIMENSIONS - len(numbers))

    itemsize = tensor_map.dtype.itemsize
    return LAYOUT.pack(
        address,
        *padded((itemsize, *tensor_map.strides)),
        *padded(tensor_map.sizes),
        *padded(tensor_map.box),
        *padded(tensor_map.element_steps),
        tensor_map.rank,
        itemsize,
        int(tensor_map.swizzle),
    )
