"""The median of a few numbers: Python's `statistics` imports fractions, decimals and random numbers for it."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """The middle one of these numbers, or half the sum of the two in the middle.

    Raises:
        ValueError: there is none.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no median of no numbers")
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
