"""Element types, and how NumPy holds them."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparsegen.operators.base.float8 import Float8
from sparsegen.system.numpy_types import Array, NumpyType

TF32_CUT = 2.0**-10  # largest relative error of a float32 factor without its last 13 bits
# Hopper's tensor cores add 8-bit products with 13 bits behind the point of the largest one (DeepSeek-V3 Technical
# Report, 3.3.2; SageAttention2, 3.2). Of 128 products, behind which kernels go on in float32, that typically comes to
# this share of one product.
FLOAT8_CUT = 2.0**-13 * 128.0**0.5


class DType(StrEnum):
    """Element type of the values, of B and of C; sums are kept in float32."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FLOAT32 else 2

    @property
    def storage(self) -> NumpyType:
        """The NumPy dtype that holds the bits; NumPy has no bfloat16, so ``uint16`` stands in for it."""
        return np.dtype({"float32": "f4", "float16": "f2", "bfloat16": "u2"}[self.value])

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next larger number."""
        return {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[self.value]

    def overflows(self, values: Array) -> int:
        """Number of finite values that become infinite when they are rounded to this type."""
        # Halfway between the largest number and the next power of two rounds to even, which is infinite.
        limit = {"float32": 2.0**128 - 2.0**103, "float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119}[
            self.value
        ]
        if values.dtype.kind not in "fiu" or (
            values.dtype.kind == "f" and values.dtype.itemsize <= self.itemsize == 4
        ):
            return 0
        if values.size and -limit < float(values.min()) and float(values.max()) < limit:  # no NaN either
            return 0
        with np.errstate(over="ignore"):  # a float16 array is held against the limit rounded to its own type
            return int(np.count_nonzero((np.abs(values) >= limit) & np.isfinite(values)))

    def to_storage(self, array: npt.ArrayLike) -> Array:
        """Real numbers to this type's storage, rounded to nearest even."""
        if self is not DType.BFLOAT16:
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(array, dtype=self.storage)
        exact = np.ascontiguousarray(array, dtype=np.float32)
        bits = exact.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(exact), np.uint32(0x7FC0), rounded).astype(np.uint16)

    def rounded(self, array: Array) -> Array:
        """Real numbers as this type holds them, in float32."""
        held: Array = self.from_storage(self.to_storage(array)).astype(np.float32, copy=False)
        return held

    def from_storage(self, stored: Array) -> Array:
        """Converts storage of bfloat16 to float32 (exact); returns other types as they are."""
        if self is not DType.BFLOAT16:
            return stored
        return (np.ascontiguousarray(stored, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


# Bits of a significand, with the leading one.
SIGNIFICAND_BITS = {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}


class WordType(StrEnum):
    """Type of an operand that holds no real numbers: words of bits, as of a mask, or numbers of rows."""

    UINT64 = "uint64"
    INT32 = "int32"

    @property
    def itemsize(self) -> int:
        """Bytes of one word."""
        return self.storage.itemsize

    @property
    def storage(self) -> NumpyType:
        """The NumPy dtype of the words."""
        return np.dtype(self.value)

    def to_storage(self, array: npt.ArrayLike) -> Array:
        """The words as they are.

        Raises:
            TypeError: these are no words of this type: numbers are not converted.
        """
        return np.ascontiguousarray(array).astype(self.storage, casting="safe", copy=False)

    def from_storage(self, stored: Array) -> Array:
        """The words as they are."""
        return stored


ElementType: TypeAlias = DType | Float8 | WordType
