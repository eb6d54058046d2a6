"""8-bit floating-point numbers, which are factors alone: sums and results have more bits.

Micikevicius et al., FP8 Formats for Deep Learning (2022): e4m3 has 4 bits of exponent and no infinity, e5m2 has 5.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

import numpy as np
import numpy.typing as npt

from sparsegen.system.numpy_types import Array, NumpyType

NAN = 0x7F  # code in both formats
LARGEST_CODES = {"float8_e4m3fn": 0x7E, "float8_e5m2": 0x7B}


class Float8(StrEnum):
    """An 8-bit type of factors. NumPy has none, so that ``uint8`` holds the bits."""

    E4M3 = "float8_e4m3fn"
    E5M2 = "float8_e5m2"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 1

    @property
    def storage(self) -> NumpyType:
        """The NumPy dtype that holds the bits."""
        return np.dtype(np.uint8)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float(_values(self)[LARGEST_CODES[self.value]])

    def overflows(self, values: Array) -> int:
        """Number of finite values that become infinite, or NaN in e4m3, when they are rounded to this type."""
        code = LARGEST_CODES[self.value]
        one_less, largest = _values(self)[code - 1 : code + 1].tolist()
        limit = largest + (largest - one_less) / 2  # halfway to the next one, if the format went on
        if values.dtype.kind not in "fiu":
            return 0
        size = np.abs(values.astype(np.float64))
        is_beyond = size >= limit if code % 2 else size > limit
        return int(np.count_nonzero(is_beyond & np.isfinite(size)))

    def to_storage(self, array: npt.ArrayLike) -> Array:
        """Real numbers to this type's bits, rounded to nearest even; too large ones become infinite, or NaN in e4m3."""
        exact = np.ascontiguousarray(array, dtype=np.float64)
        fraction_bits, bias = _layout(self)
        size = np.fmin(np.fmax(np.abs(exact), 2.0**-99), 2 * self.largest)  # as far as codes do not change
        binade = np.maximum(np.frexp(size)[1] - 1 + bias, 1)  # the first one holds subnormal numbers too
        code = np.rint(np.ldexp(size, fraction_bits + bias - binade)) + ((binade - 1) << fraction_bits)
        code = np.where(np.isnan(exact), NAN, np.minimum(code, LARGEST_CODES[self.value] + 1))
        return code.astype(np.uint8) | (np.signbit(exact) & ~np.isnan(exact)).astype(np.uint8) << 7

    def from_storage(self, stored: Array) -> Array:
        """Converts bits of the type to float32, exactly."""
        found: Array = _values(self)[np.asarray(stored, dtype=np.uint8)]
        return found


class FactorType(StrEnum):
    """Element types of the two dense operands of a product with a mask, in the order of the call."""

    SAME = "same"  # the result's type
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E4M3_E5M2 = "e4m3-e5m2"
    E5M2_E4M3 = "e5m2-e4m3"

    @property
    def types(self) -> tuple[Float8, Float8] | None:
        """Both types; None where they are the result's."""
        if self is FactorType.SAME:
            return None
        names = self.value.split("-")
        first, last = (Float8[name.upper()] for name in (names[0], names[-1]))
        return first, last


def _layout(kind: Float8) -> tuple[int, int]:
    """Returns the number of fraction bits, and the exponent's bias."""
    return (3, 7) if kind is Float8.E4M3 else (2, 15)


@cache
def _values(kind: Float8) -> Array:
    """Returns the value of each of the 256 codes, float32."""
    fraction_bits, bias = _layout(kind)
    code = np.arange(128)
    exponent, fraction = code >> fraction_bits, (code & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    size = np.where(
        exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - float(bias))
    )
    beyond = LARGEST_CODES[kind.value] + 1
    size[beyond:] = np.nan
    if kind is Float8.E5M2:
        size[beyond] = np.inf
    both: Array = np.concatenate((size, -size)).astype(np.float32)
    return both
