"""State of the second-level cache before a timed call."""

from __future__ import annotations

from enum import StrEnum


class L2(StrEnum):
    """State of the second-level cache before each timed call.

    Flushed by writing, it is full of lines that the timed call has to write back; by reading afterwards, of lines
    that can go; or it is left as the last call left it.
    """

    COLD = "cold"
    CLEAN = "clean"
    WARM = "warm"
