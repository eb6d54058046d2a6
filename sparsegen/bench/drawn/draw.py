"""Random numbers for one row of a drawn suite: sizes, shares and choices."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeVar

from sparsegen.matrix.random_words import Words
from sparsegen.system.integers import ceil_div

T = TypeVar("T")

STEP = 8  # half of all sizes are a multiple of it, as widths of layers are


class Draw:
    """The random numbers of one row. Equal arguments give equal ones, on every machine; rows do not depend on others.

    Args:
        operator: name of the row's operator.
        seed: seed of the suite, from 0 on.
        number: number of the row.
    """

    def __init__(self, operator: str, seed: int, number: int) -> None:
        text = f"{operator} {seed} {number}"
        self._words = Words(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))

    def _fraction(self) -> float:
        """Draws a number from 0 to below 1."""
        return float(self._words.fractions(1)[0])

    def _between(self, low: float, high: float) -> float:
        return low + (high - low) * self._fraction()

    def one_of(self, values: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """One of the values, each as likely or by its weight."""
        if weights is None:
            return values[int(self._fraction() * len(values))]
        left = self._fraction() * sum(weights)
        for value, weight in zip(values, weights, strict=True):
            left -= weight
            if left < 0:
                return value
        return values[-1]

    def chance(self, share: float) -> bool:
        """True for that share of all rows."""
        return self._fraction() < share

    def whole(self, low: int, high: int) -> int:
        """A whole number from low to high, both from 1 on; each octave is as likely."""
        return min(high, int(math.exp(self._between(math.log(low), math.log(high + 1)))))

    def size(self, low: int, high: int) -> int:
        """The same, never a power of two from 8 on; half of those above `STEP` are a multiple of it."""
        while True:
            found = self.whole(low, high)
            if found > STEP and self.chance(0.5):
                found = max(low, found // STEP * STEP)
            if found < STEP or found & (found - 1):
                return found

    def multiple(self, of: int, low: int, high: int) -> int:
        """A multiple of a number from low to high, no power of two; each octave is as likely."""
        while True:
            found = self.whole(ceil_div(low, of), high // of) * of
            if found & (found - 1):
                return found

    def share(self, low: float, high: float) -> float:
        """A share between both, in thousandths; each octave is as likely."""
        return max(0.001, round(math.exp(self._between(math.log(low), math.log(high))), 3))

    def number(self, low: float, high: float) -> float:
        """A number between both in hundredths, each as likely."""
        return round(self._between(low, high), 2)

    def seed(self) -> int:
        """A seed for a pattern."""
        return int(self._fraction() * 2**31)
