"""What convolutions have beside their sizes: filters, strides, padding, dilation, groups, and blocks of a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.operators.fields import Parameter


@dataclass(frozen=True, slots=True)
class Sides(Parameter):
    """Two whole numbers, of rows and of columns; written ``3x5``, or ``3`` where they are equal.

    Attributes:
        least, most: what each may be.
        what: it is, for errors.
    """

    least: ClassVar[int]
    most: ClassVar[int]
    what: ClassVar[str]

    rows: int
    columns: int

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The sides that ``"3x5"``, ``(3, 5)`` or, where they are equal, ``3`` stands for."""
        if isinstance(value, cls):
            return value
        sides = value.split("x") if isinstance(value, str) else value
        if not isinstance(sides, list | tuple):
            sides = (sides,)
        try:
            found = [int(side) if isinstance(side, str) else arguments.whole(side, "side") for side in sides]
        except (ValueError, ConfigError):
            found = []
        if len(found) not in (1, 2) or not all(cls.least <= side <= cls.most for side in found):
            raise ValueError(
                f'no {cls.what}: write "3x5", rows and columns, each from {cls.least} to {cls.most}'
            )
        return cls(found[0], found[-1])

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def json(self) -> str:
        return str(self)

    @property
    def octaves(self) -> tuple[float, ...]:
        return math.log2(self.rows + 1 - self.least), math.log2(self.columns + 1 - self.least)


class FilterSize(Sides):
    """Rows and columns of a filter."""

    __slots__ = ()
    least, most, what = 1, 7, "filter size"


class Stride(Sides):
    """Pixels of the input from one output to the next."""

    __slots__ = ()
    least, most, what = 1, 8, "stride"


class Padding(Sides):
    """Zeros on each side of the input."""

    __slots__ = ()
    least, most, what = 0, 48, "padding"


class Dilation(Sides):
    """Pixels of the input from one tap of the filter to the next."""

    __slots__ = ()
    least, most, what = 1, 16, "dilation"


class MaskBlock(Sides):
    """Pixels of a block of a spatial mask."""

    __slots__ = ()
    least, most, what = 1, 256, "block of a mask"


@dataclass(frozen=True, slots=True)
class Groups(Parameter):
    """Groups of channels that are convolved apart."""

    count: int

    @classmethod
    def parse(cls, value: Any) -> Self:
        """So many groups, at least one."""
        if isinstance(value, cls):
            return value
        try:
            found = int(value) if isinstance(value, str) else arguments.whole(value, "groups", least=1)
        except (ValueError, ConfigError):
            found = 0
        if found < 1:
            raise ValueError("no number of groups: it is a whole number from 1 on")
        return cls(found)

    def __str__(self) -> str:
        return str(self.count)

    @property
    def json(self) -> float:
        return self.count

    @property
    def octaves(self) -> tuple[float, ...]:
        return (math.log2(self.count),)
