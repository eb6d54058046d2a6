"""A choice that stays: the winner of earlier searches is replaced only by what is faster beyond the noise of both.

Two searches of one machine measure the same variants a little differently, and often find others that are as fast. A
database that took the fastest of the day would change what runs for nothing. So the rounds in which finalists were
timed are gone through in their order: whoever won the first one stays the winner until a later round shows another one
whose interval lies below its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from sparsegen.system.median import median
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant

SESSIONS_DIFFER = (
    0.005  # half of what medians of repeated sessions differ by (`ranking.TIE`): no interval is narrower
)
DEVIATION = 2.5631  # standard deviations between the 10th and the 90th percentile of a normal distribution
OF_MEDIAN = math.sqrt(math.pi / 2)  # a median's standard error over a mean's
CONFIDENCE = 1.96  # standard errors, for 95 %
FROM_ABSOLUTE = 1.4826  # factor from a median of absolute deviations to a standard deviation
ROUND_GAP = timedelta(seconds=5)  # finalists of one round are recorded at once


class Interval(NamedTuple):
    """Confidence interval of a variant's median time, in µs, at 95 %."""

    low_us: float
    high_us: float

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Interval:
        """Around the median of the samples' medians: as wide as one sample's noise, or as the samples' scatter."""
        medians = [sample.median_us for sample in samples]
        center = median(medians)
        scatter = FROM_ABSOLUTE * median(abs(m - center) for m in medians)
        half = max(SESSIONS_DIFFER * center, median(map(_half_width, samples)), scatter)
        return cls(max(0.0, center - half), center + half)

    def is_below(self, other: Interval) -> bool:
        """True if all of it is faster than all of the other."""
        return self.high_us < other.low_us


def _half_width(sample: Sample) -> float:
    """Half width of the interval of one sample's median, from its percentiles and its size."""
    deviation = max(0.0, sample.high_us - sample.low_us) / DEVIATION
    return CONFIDENCE * OF_MEDIAN * deviation / math.sqrt(sample.count)


Best = Callable[[list[Measurement]], Mapping[Variant, Interval]]


def incumbent(finals: Iterable[Measurement], in_order: Best) -> Variant | None:
    """Returns the winner of the finals so far; None if there was but one round, whose fastest it is, or none is left.

    Args:
        finals: finalists' times and failures, for one workload on one device.
        in_order: returns the intervals of the variants that some of these support, best first.
    """
    listed = sorted(finals, key=lambda m: m.measured_at)
    ends = _ends_of_rounds(listed)
    if len(ends) < 2:
        return None
    winner: Variant | None = None
    for end in ends:
        known = in_order(listed[:end])
        if not known:
            winner = None
        else:
            first = next(iter(known))
            if winner is None or winner not in known or known[first].is_below(known[winner]):
                winner = first
    return winner


def _ends_of_rounds(listed: Sequence[Measurement]) -> list[int]:
    """Positions after the last final of each round; failures belong to the round after them, or to the last one."""
    ends: list[int] = []
    last = None
    for number, m in enumerate(listed):
        if m.outcome is not Outcome.OK:
            continue
        if last is not None and m.measured_at - last <= ROUND_GAP:
            ends[-1] = number + 1
        else:
            ends.append(number + 1)
        last = m.measured_at
    return [*ends[:-1], len(listed)] if ends else []
