"""Parameters of convolutions besides sizes: filters, strides, padding, dilation, groups, and blocks of a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from sparsegen import arguments
from sparsegen.errors import ConfigError, MatrixError
from sparsegen.matrix.kernel_map import MOST_TAPS, odd_sides
from sparsegen.operators.base.fields import NoValueError, Parameter
from sparsegen.operators.base.sides import Sides


class _Ranged(Sides):
    """Sides from a least to a most number, of what a sentence names."""

    __slots__ = ()
    least: ClassVar[int]

    def __init_subclass__(cls, *, least: int, most: int, what: str) -> None:
        cls.least, cls.allowed = least, range(least, most + 1)
        cls.expected = f'no {what}: write "3x5", rows and columns, each from {least} to {most}'

    @property
    def octaves(self) -> tuple[float, ...]:
        return math.log2(self.rows + 1 - self.least), math.log2(self.columns + 1 - self.least)


class FilterSize(_Ranged, least=1, most=7, what="filter size"):
    """Rows and columns of a filter."""

    __slots__ = ()


class Stride(_Ranged, least=1, most=8, what="stride"):
    """Pixels of the input from one output to the next."""

    __slots__ = ()


class Padding(_Ranged, least=0, most=48, what="padding"):
    """Zeros on each side of the input."""

    __slots__ = ()


class Dilation(_Ranged, least=1, most=16, what="dilation"):
    """Pixels of the input from one tap of the filter to the next."""

    __slots__ = ()


class MaskBlock(_Ranged, least=1, most=256, what="block of a mask"):
    """Pixels of a block of a spatial mask."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Groups(Parameter):
    """Groups of channels that are convolved apart."""

    count: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Parses a number of groups, at least one."""
        if isinstance(value, cls):
            return value
        try:
            found = int(value) if isinstance(value, str) else arguments.whole(value, "groups", least=1)
        except (ValueError, ConfigError):
            found = 0
        if found < 1:
            raise NoValueError("no number of groups: it is a whole number from 1 on")
        return cls(found)

    def __str__(self) -> str:
        return str(self.count)

    @property
    def json(self) -> float:
        return self.count

    @property
    def octaves(self) -> tuple[float, ...]:
        return (math.log2(self.count),)


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
