"""Seconds that a study may take, and those that its points should take on one H200, from counted work."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

START = 12.0  # of a process: PyTorch, CUDA's context, data and the tuning database
LAUNCH = 8e-6  # of a kernel that PyTorch starts from Python
COMPILE = 2.5  # of a kernel that is not in the cache; layers of a model come one behind the other
# Reached by large products: a half of an H200's peaks. Bytes are of memory.
FLOAT32, TF32, HALF, BYTES = 33e12, 200e12, 400e12, 3.5e12


def seconds(
    *,
    float32: float = 0,
    tf32: float = 0,
    half: float = 0,
    moved: float = 0,
    launches: float = 0,
    compiled: float = 0,
) -> float:
    """Seconds of operations, bytes, launches and compiled kernels; launches hide behind operations."""
    computed = float32 / FLOAT32 + tf32 / TF32 + half / HALF + moved / BYTES
    return max(computed, launches * LAUNCH) + compiled * COMPILE


@dataclass(frozen=True)
class Budget:
    """Times of `time.monotonic`.

    Attributes:
        turn: no point is begun later, nor, but for the first one, that should end later: another study has its turn.
        whole: no point is begun that should end later.
    """

    turn: float
    whole: float = math.inf

    @classmethod
    def of(cls, limit: float, within: float = math.inf) -> Budget:
        """A budget of seconds from now on."""
        now = time.monotonic()
        return cls(now + limit, now + within)

    @property
    def left(self) -> float:
        """Seconds that work may still be begun in, by both."""
        return min(self.turn, self.whole) - time.monotonic()

    def allows(self, expected: float, *, first: bool) -> bool:
        """True if work that should take ``expected`` seconds may begin; a turn's first may outlast it."""
        now = time.monotonic()
        return now + (0 if first else expected) <= self.turn and now + expected <= self.whole
