"""The size of a filter with three axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from sparsegen.errors import MatrixError
from sparsegen.matrix.kernel_map import MOST_TAPS, odd_sides
from sparsegen.operators.base.fields import NoValueError, Parameter


@dataclass(frozen=True, slots=True)
class FilterVolume(Parameter):
    """Taps of a filter along z, y and x, odd numbers; written ``3x3x3``, or ``3`` where they are equal."""

    depth: int
    rows: int
    columns: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """The size that ``"3x3x1"``, ``(3, 3, 1)`` or, where all are equal, ``3`` stands for."""
        if isinstance(value, cls):
            return value
        try:
            sides = tuple(map(int, value.split("x"))) if isinstance(value, str) else value
            return cls(
                *odd_sides(sides[0] if isinstance(sides, tuple) and len(sides) == 1 else sides, "side")
            )
        except (ValueError, MatrixError):
            raise NoValueError(
                f'no filter size: write "3x3x3" (z, y, x), each an odd number from 1 to {MOST_TAPS}'
            ) from None

    @property
    def sides(self) -> tuple[int, int, int]:
        """Taps along z, y and x."""
        return self.depth, self.rows, self.columns

    @property
    def taps(self) -> int:
        """Taps in all."""
        return self.depth * self.rows * self.columns

    def __str__(self) -> str:
        return "x".join(map(str, self.sides))

    @property
    def json(self) -> str:
        return str(self)

    @property
    def octaves(self) -> tuple[float, ...]:
        return (math.log2(self.taps),)
