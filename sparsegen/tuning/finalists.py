"""The last round: the best few are timed again in turn, A B C A B C, so that drift hits them alike."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparsegen.tuning_db.records import Measurement, Outcome

MOST = 5
WITHIN = 1.10  # of the best
FAMILY_WITHIN = 1.5  # of the best, for the best of each family
ROUNDS = 5
SAMPLES_PER_ROUND = 20


def median_us(measurement: Measurement) -> float:
    return measurement.sample.median_us if measurement.sample else math.inf


def pick(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Those worth a second look, best first: the best few, and the best of each family that is not far off."""
    good = sorted((m for m in measurements if m.outcome is Outcome.OK), key=median_us)
    if not good:
        return []
    best = median_us(good[0])
    chosen = [m for m in good if median_us(m) <= WITHIN * best][:MOST]
    leaders = {m.variant.family: m for m in reversed(good)}
    chosen += [m for m in leaders.values() if m not in chosen and median_us(m) <= FAMILY_WITHIN * best]
    return sorted(chosen, key=median_us)


def schedule(finalists: list[Measurement], seconds: float) -> tuple[int, int]:
    """Rounds, and samples in each, that fit into about so many seconds; at least two rounds of one."""
    once = sum(median_us(m) for m in finalists) * 1e-6
    samples = max(2, min(ROUNDS * SAMPLES_PER_ROUND, int(seconds / max(once, 1e-9))))
    rounds = min(ROUNDS, samples)
    return rounds, samples // rounds
