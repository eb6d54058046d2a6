"""The cut between the groups that stay and those that go: exact, also where scores are equal.

Groups are taken by falling score; of equal scores first those of the layer whose name sorts first, then by index.
What stays is a head of that order, the one whose number of weights is nearest to the number asked for (of two equally
near ones the smaller). With groups of one weight it is met exactly. A head of an order does not depend on how much is
asked for, so a lower sparsity only ever adds weights.

The threshold is found digit by digit (a radix selection on the bits of the scores), which needs one pass over the
layers for each 16 bits and no memory that grows with the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sparsegen.pruning.groups import Groups
from sparsegen.system.numpy_types import Array, NumpyType

DIGIT = 16  # bits
CHUNK = 1 << 18  # groups looked at together, which fit in a cache

# The layers' groups by name, in sorted order; called once for each pass.
Scored = Callable[[], Iterable[tuple[str, Groups]]]


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The part of one layer that stays: groups above the threshold, and as many of those on it as there is room for.

    Attributes:
        threshold: a score, as an array of one element, whose type takes part in comparisons: a number would be rounded
            to the scores' own type, and so equal other scores. Infinite when nothing stays.
        room: weights that groups on the threshold may hold, less those of equal groups that go before them in
            other layers; below 0 when these fill it.
    """

    threshold: Array
    room: int

    def kept(self, groups: Groups) -> Array:
        """A boolean for each group."""
        kept: Array = groups.scores > self.threshold
        tied = np.flatnonzero(groups.scores == self.threshold)
        sizes = groups.sizes_at(tied)
        through = np.cumsum(sizes)
        # A group belongs to the head while that brings the number of weights nearer to the room.
        kept[tied[2 * through - sizes < 2 * self.room]] = True
        return kept


def weights_kept(sparsity: float, size: int) -> int:
    """The number of weights that stay: ``size`` less ``sparsity`` · ``size``, which is rounded half up.

    The sparsity is taken as the decimal number that it prints as, so that 0.29 · 50 is 14.5.
    """
    return size - math.floor(Fraction(str(float(sparsity))) * size + Fraction(1, 2))


def find_cuts(scored: Scored, keep: int, score_type: NumpyType) -> dict[str, Cut]:
    """The cut of every layer so that ``keep`` weights stay, or as near as whole groups allow.

    Args:
        scored: the layers' groups, the same in each pass.
        keep: number from 0 to that of the weights in all groups.
        score_type: float32 or float64, into which every score fits unchanged.
    """
    if keep == 0:
        return {name: Cut(np.array([np.inf], score_type), 0) for name, _ in scored()}
    bits = np.dtype(f"u{score_type.itemsize}")
    # The bits of numbers that are not negative sort like the numbers.
    prefix, room = 0, keep
    for shift in range(bits.itemsize * 8 - DIGIT, -1, -DIGIT):
        weights = np.zeros(1 << DIGIT, np.int64)  # by digit, for the groups with the prefix
        for _, groups in scored():
            _count_digits(weights, groups, score_type, bits, prefix, shift)
        at_least = np.append(np.cumsum(weights[::-1])[::-1], 0)
        digit = int(np.flatnonzero(at_least >= room)[-1])
        room -= int(at_least[digit + 1])
        prefix = prefix << DIGIT | digit
    threshold = np.array([prefix], bits).view(score_type)
    cuts = {}
    for name, groups in scored():
        cuts[name] = Cut(threshold, room)
        room -= int(groups.sizes_at(np.flatnonzero(groups.scores == threshold)).sum())
    return cuts


def _count_digits(
    weights: Array, groups: Groups, score_type: NumpyType, bits: NumpyType, prefix: int, shift: int
) -> None:
    """Add to ``weights`` the sizes of the groups with this prefix, by the digit that follows it."""
    for start in range(0, groups.scores.size, CHUNK):
        chunk = slice(start, start + CHUNK)
        found = groups.scores[chunk].astype(score_type, copy=False).view(bits)
        sizes = groups.sizes if isinstance(groups.sizes, int) else groups.sizes[chunk]
        if shift + DIGIT < bits.itemsize * 8:
            same = found >> bits.type(shift + DIGIT) == prefix
            found = found[same]
            sizes = sizes if isinstance(sizes, int) else sizes[same]
        digits = (found >> bits.type(shift) & bits.type((1 << DIGIT) - 1)).astype(np.intp)
        if isinstance(sizes, int):
            weights += np.bincount(digits, minlength=weights.size) * sizes
        else:  # bincount adds float64, exact below 2⁵³
            weights += np.bincount(digits, sizes, minlength=weights.size).astype(np.int64)
