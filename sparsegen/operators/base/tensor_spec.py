"""Specifications of operands and results: name, shape, dtype."""

from __future__ import annotations

import math
from typing import NamedTuple

from sparsegen.operators.base.dtype import ElementType


class TensorSpec(NamedTuple):
    """Name, shape as stored (row-major) and dtype of one dense operand or result.

    Attributes:
        alignment: bytes that divide an array's address; 0: as many as vector loads of whole rows need, at most 16
            (a one-dimensional array is read by elements).
        is_updated: for a result, true if some of its elements are left as they were.
        is_written: for an operand, true if it is a further result, which calls write and do not read
            (`Problem.written_references`).
        may_lack_rows: for an operand, true if calls may bring the first rows alone, all that another operand names.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ElementType
    alignment: int = 0
    is_updated: bool = False
    is_written: bool = False
    may_lack_rows: bool = False

    def takes(self, shape: tuple[int, ...]) -> bool:
        """True if a call may bring an array of this shape."""
        if not self.may_lack_rows or len(shape) != len(self.shape):
            return shape == self.shape
        return 1 <= shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize
