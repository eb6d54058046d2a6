"""Tensor maps as the CUDA driver encodes them (cuTensorMapEncodeTiled), for kernels that take them by value."""

from __future__ import annotations

import ctypes

from sparsegen.backends.cuda.driver import check, libcuda
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.operators import DType, Float8

MAP_BYTES, MAP_ALIGNMENT = 128, 64
DATA_TYPES: dict[DType | Float8, int] = {  # CUtensorMapDataType
    Float8.E4M3: 0,
    Float8.E5M2: 0,  # passed as bytes
    DType.FLOAT16: 6,
    DType.FLOAT32: 7,
    DType.BFLOAT16: 9,
}
SWIZZLES = {Swizzle.NONE: 0, Swizzle.BYTES_32: 1, Swizzle.BYTES_64: 2, Swizzle.BYTES_128: 3}
INTERLEAVE_NONE, L2_PROMOTION_128, L2_PROMOTION_256, FILL_ZERO = 0, 2, 3, 0


class EncodedMap:
    """A kernel parameter that follows an array's address: setting `value` encodes the map for it."""

    __slots__ = ("_address", "_constant", "_storage", "address")

    def __init__(self, tensor_map: TensorMap) -> None:
        """The parameter of a map, whose array is not known yet."""
        self._storage = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        start = ctypes.addressof(self._storage)
        self.address = start + -start % MAP_ALIGNMENT  # address of the encoded map
        self._address = 0
        rank = tensor_map.rank
        sizes = (ctypes.c_uint64 * rank)(*tensor_map.sizes)
        strides = (ctypes.c_uint64 * max(1, rank - 1))(*tensor_map.strides)
        box = (ctypes.c_uint32 * rank)(*tensor_map.extents)  # in elements; a step takes its first
        steps = (ctypes.c_uint32 * rank)(*tensor_map.element_steps)
        is_wide = tensor_map.swizzle is Swizzle.BYTES_128 and tensor_map.l2_bytes == 256
        self._constant = (
            (ctypes.c_int(DATA_TYPES[tensor_map.dtype]), ctypes.c_uint32(rank)),
            (sizes, strides, box, steps),
            (
                ctypes.c_int(INTERLEAVE_NONE),
                ctypes.c_int(SWIZZLES[tensor_map.swizzle]),
                ctypes.c_int(L2_PROMOTION_256 if is_wide else L2_PROMOTION_128),
                ctypes.c_int(FILL_ZERO),
            ),
        )

    @property
    def value(self) -> int:
        """The address of the array."""
        return self._address

    @value.setter
    def value(self, address: int) -> None:
        """Raises LaunchError where the driver refuses the map, as for an address that is no multiple of 16."""
        if address == self._address:
            return
        kind, shape, reading = self._constant
        status = libcuda().cuTensorMapEncodeTiled(
            ctypes.c_void_p(self.address), *kind, ctypes.c_void_p(address), *shape, *reading
        )
        check(status, f"cannot encode a tensor map of an array at {address:#x}")
        self._address = address
