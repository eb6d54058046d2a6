"""Blocks of a mask, and elements of a matrix, as expected times see them: each is live by itself, with one
probability.
"""

from __future__ import annotations


def any_live(share: float, count: float) -> float:
    """The probability that any of ``count`` blocks is live, where each one is with the probability ``share``."""
    return float(1.0 - (1.0 - share) ** count)
