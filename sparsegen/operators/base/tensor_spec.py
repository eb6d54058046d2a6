"""Specifications of operands and results: name, shape, dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.operators.base.dtype import ElementType


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape as stored (row-major) and dtype of one dense operand or result.

    Attributes:
        alignment: bytes that divide an array's address; 0: as many as vector loads of whole rows need, at most 16
            (a one-dimensional array is read by elements).
        is_updated: for a result, true if some of its elements are left as they were.
        is_written: for an operand, true if it is a further result, which calls write and do not read
            (`Problem.written_references`).
    """

    name: str
    shape: tuple[int, ...]
    dtype: ElementType
    alignment: int = 0
    is_updated: bool = False
    is_written: bool = False

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
