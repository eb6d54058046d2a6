"""Scores of a head of attention and what becomes of them: softcap, ALiBi, and a learned sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.operators.base.fields import NoValueError, Parameter
from sparsegen.system.numpy_types import Array

MOST_ROOM = 1 << 24


@dataclass(frozen=True, slots=True)
class Room(Parameter):
    """Number of partial blocks of all masks that there is room for; 0 where all live blocks are full."""

    blocks: int = 0

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The room that a whole number from 0 on stands for."""
        if isinstance(value, cls):
            return value
        try:
            found = int(value) if isinstance(value, str) else arguments.whole(value, "room")
        except (ValueError, ConfigError):
            found = -1
        if not 0 <= found <= MOST_ROOM:
            raise NoValueError(f"no room: write a whole number of partial blocks, 0 to {MOST_ROOM}")
        return cls(found)

    def __str__(self) -> str:
        return str(self.blocks)

    @property
    def json(self) -> float:
        return self.blocks


NO_ROOM = Room()


@dataclass(frozen=True, slots=True)
class ValueColumns(Parameter):
    """Columns of V and O for a head; 0 for as many as Q and K have."""

    count: int = 0

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The columns that a whole number from 0 on stands for."""
        if isinstance(value, cls):
            return value
        try:
            found = int(value) if isinstance(value, str) else arguments.whole(value, "value_dim")
        except (ValueError, ConfigError):
            found = -1
        if not 0 <= found <= MOST_ROOM:
            raise NoValueError(
                f"no columns of values: write a whole number, 0 (as many as keys have) to {MOST_ROOM}"
            )
        return cls(found)

    def __str__(self) -> str:
        return str(self.count)

    @property
    def json(self) -> float:
        return self.count


AS_KEYS = ValueColumns()


@dataclass(frozen=True, slots=True)
class HeadScores:
    """Scores of a query head, in float64.

    Attributes:
        softcap: 0 for none.
        slope: of ALiBi; 0 for none.
        shift: the key that query 0 stands beside, for ALiBi.
        sink: the learned logit; -inf for none.
    """

    scale: float
    softcap: float = 0.0
    slope: float = 0.0
    shift: int = 0
    sink: float = -np.inf

    @classmethod
    def of(cls, operands: Mapping[str, Array], head: int, shift: int) -> Self:
        """The scores of a head, of the operands of a call."""

        def number(name: str, default: float, at: int = 0) -> float:
            return float(operands[name][at]) if name in operands else default

        return cls(
            number("scale", 1.0),
            number("softcap", 0.0),
            number("slopes", 0.0, head),
            shift,
            number("sink_logits", -np.inf, head),
        )

    def of_places(self, q: Array, k: Array, first_query: int) -> tuple[Array, Array, Array]:
        """Scores of queries × keys, their derivatives by the scaled product, and the size of what was rounded.

        Args:
            q: some queries × head_dim, which begin at ``first_query``.
            k: all keys × head_dim.
        """
        z = q @ k.T * self.scale
        slope, rounded = np.ones_like(z), np.abs(z)
        if self.softcap:
            bent = np.tanh(z / self.softcap)
            z, slope, rounded = bent * self.softcap, 1.0 - bent**2, np.full_like(z, self.softcap)
        if self.slope:
            i = first_query + self.shift + np.arange(q.shape[0])[:, None]
            bias = -self.slope * np.abs(np.arange(k.shape[0]) - i)
            z, rounded = z + bias, rounded + np.abs(bias)
        return z, slope, rounded
