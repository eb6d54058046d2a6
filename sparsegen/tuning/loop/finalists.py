"""The last round: the best few are timed again in turn, A B C A B C, so that drift hits them alike."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from sparsegen.kernels.config import Config
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Measurement

MOST = 5
WITHIN = 1.10  # factor of the best time
FAMILY_WITHIN = 1.5  # factor of the best time, for the best of each family
ROUNDS = 5
SAMPLES_PER_ROUND = 20


def median_us(measurement: Measurement | None) -> float:
    """Infinite where nothing was timed."""
    return measurement.sample.median_us if measurement and measurement.sample else math.inf


def is_finished(measurements: Iterable[Measurement]) -> bool:
    """True if a search of the measurements' workload reached its last round."""
    return any(m.final for m in measurements)


def pick(measurements: Iterable[Measurement], defaults: Collection[Config] = ()) -> list[Measurement]:
    """Picks the finalists, best first: the best few, each family's best if it is not far off, the winner of earlier
    finals, which only another final can replace, and the defaults.

    Args:
        defaults: configs that would run without a search, however far off they seem: no search is to end with something
            slower.
    """
    listed = list(measurements)
    good = sorted(ranking.times(listed).values(), key=lambda r: r.time_us)
    if not good:
        return []
    best = good[0].time_us
    chosen = [r for r in good if r.time_us <= WITHIN * best][:MOST]
    leaders = {r.variant.family: r for r in reversed(good)}
    chosen += [r for r in leaders.values() if r not in chosen and r.time_us <= FAMILY_WITHIN * best]
    known = {r.variant: r for r in good}
    first = next((r for r in ranking.ranked(listed) if r.measurement.final), None)
    if first is not None and first.variant in known and known[first.variant] not in chosen:
        chosen.append(known[first.variant])
    chosen += [r for r in good if r.variant.config in defaults and r not in chosen]
    return [r.measurement for r in sorted(chosen, key=lambda r: r.time_us)]


def schedule(finalists: Iterable[Measurement], seconds: float) -> tuple[int, int]:
    """Returns rounds, and samples in each, that fit into about ``seconds`` seconds; at least two rounds of one."""
    once = sum(median_us(m) for m in finalists) * 1e-6
    samples = max(2, min(ROUNDS * SAMPLES_PER_ROUND, int(seconds / max(once, 1e-9))))
    rounds = min(ROUNDS, samples)
    return rounds, samples // rounds
