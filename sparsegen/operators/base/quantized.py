"""Weights of 8 and 4 bits: how their codes are stored, and which of them share a scale and a zero point."""

from __future__ import annotations

from enum import StrEnum
from functools import cache

import numpy as np
import numpy.typing as npt

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.float8 import Float8
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

QUANTIZED_OPERATOR = "quantized_spmm"  # here, since reading it imports no operator


class ValueType(StrEnum):
    """Storage of a quantised weight's nonzeros: each is its code times a scale."""

    E4M3 = "e4m3"  # floating point with 4 bits of exponent (`Float8.E4M3`)
    INT8 = "int8"  # integers from -128 to 127
    INT4 = "int4"  # integers from -8 to 7

    @property
    def bits(self) -> int:
        """Bits of one code."""
        return 4 if self is ValueType.INT4 else 8

    @property
    def largest(self) -> float:
        """The largest code as a number."""
        return {"e4m3": Float8.E4M3.largest, "int8": 127.0, "int4": 7.0}[self.value]

    @property
    def smallest(self) -> float:
        """The smallest code as a number; of integers it has no negative, and `quantize` leaves it out."""
        return -self.largest - (self is not ValueType.E4M3)

    def overflows(self, values: Array) -> int:
        """Number of finite values that are larger than the largest code when they are rounded."""
        if self is ValueType.E4M3:
            return Float8.E4M3.overflows(values)
        is_beyond = (values > self.largest + 0.5) | (values < self.smallest - 0.5)
        return int(np.count_nonzero(is_beyond & np.isfinite(values)))

    def to_codes(self, values: npt.ArrayLike) -> Array:
        """Real numbers to codes (uint8), rounded to nearest even; integers have 128 or 8 added, which is zero."""
        if self is ValueType.E4M3:
            return _e4m3_codes(values)
        whole = np.clip(np.rint(values), self.smallest, self.largest) - self.smallest
        with np.errstate(invalid="ignore"):  # NaN is none
            return whole.astype(np.uint8)

    def to_stored(self, values: npt.ArrayLike) -> Array:
        """Codes of real numbers as they are kept, uint8: one a byte, or two of 4 bits, the first in the lower half."""
        codes = self.to_codes(values)
        if self.bits != 4:
            return codes
        pairs = np.append(codes, np.zeros(codes.size % 2, dtype=np.uint8))
        packed: Array = pairs[0::2] | pairs[1::2] << 4
        return packed

    def rounded(self, values: Array) -> Array:
        """Real numbers as codes hold them, in float32."""
        codes = self.to_codes(values)
        if self is ValueType.E4M3:
            return Float8.E4M3.from_storage(codes)
        return codes.astype(np.float32) + np.float32(self.smallest)


def _e4m3_codes(values: npt.ArrayLike) -> Array:
    """`Float8.to_storage`; of codes as numbers, which halves hold, by a table of all halves."""
    given = np.asarray(values)
    with np.errstate(over="ignore"):
        halves = given.astype(np.float16)
    codes: Array = _codes_of_halves()[halves.view(np.uint16)]
    if np.array_equal(Float8.E4M3.from_storage(codes), given):
        return codes
    return Float8.E4M3.to_storage(given)


@cache
def _codes_of_halves() -> Array:
    """Returns the e4m3 code of each half, by its bits."""
    return Float8.E4M3.to_storage(np.arange(1 << 16, dtype=np.uint16).view(np.float16))


class ScaleGroup(StrEnum):
    """Extent of a scale: neighbouring columns of a row, or the whole row."""

    ROW = "row"
    OF_32 = "32"
    OF_64 = "64"
    OF_128 = "128"

    def size(self, columns: int) -> int:
        """Number of columns in a group, for rows of ``columns``."""
        return max(1, columns) if self is ScaleGroup.ROW else int(self.value)

    def number(self, columns: int) -> int:
        """Number of groups in a row of ``columns``, at least 1."""
        return max(1, ceil_div(columns, self.size(columns)))


class Symmetry(StrEnum):
    """The code that stands for zero."""

    SYMMETRIC = "symmetric"  # zero itself
    ASYMMETRIC = "asymmetric"  # each scale has a zero point beside it, which is subtracted from its codes


def scaled(
    codes: CsrMatrix,
    scales: Array,
    value_type: ValueType,
    group: ScaleGroup,
    zero_points: Array | None = None,
) -> Array:
    """The values of the nonzeros, (code − zero point) · scale, float32.

    They are exact: differences of codes have 8 bits and a sign at most, and scales 11.

    Args:
        scales: groups × rows, real numbers.
        zero_points: likewise, whole numbers that are codes; None for symmetric ones.
    """
    rows, columns = codes.shape
    row = np.repeat(np.arange(rows), np.diff(codes.row_offsets))
    place = codes.column_indices // group.size(columns), row
    numbers = value_type.rounded(codes.values)
    if zero_points is not None:
        numbers = numbers - value_type.rounded(zero_points)[place]
    found: Array = numbers * scales[place].astype(np.float32)
    return found
