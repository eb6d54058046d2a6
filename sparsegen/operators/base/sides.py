"""Parameters of problems that are a number of rows and one of columns."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar, Self

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.operators.base.fields import NoValueError, Parameter


@dataclass(frozen=True, slots=True)
class Sides(Parameter):
    """Two whole numbers, of rows and of columns; written ``3x5``, or ``3`` where they are equal.

    Attributes:
        allowed: allowed values of each.
        expected: the faults of other values and the way to write one, for errors.
    """

    allowed: ClassVar[Container[int]]
    expected: ClassVar[str]

    rows: int
    columns: int

    @classmethod
    def parse(cls, value: object) -> Self:
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
        if len(found) not in (1, 2) or not all(side in cls.allowed for side in found):
            raise NoValueError(cls.expected)
        return cls(found[0], found[-1])

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def json(self) -> str:
        return str(self)

    @property
    def octaves(self) -> tuple[float, ...]:
        return math.log2(self.rows), math.log2(self.columns)
