"""Ranking of several measurements of one workload on one device: the one place that decides which is best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sparsegen.system.median import median
from sparsegen.tuning_db.incumbent import Interval, incumbent
from sparsegen.tuning_db.records import MeasuredAs, Measurement, Outcome, Prediction, Sample, Variant

TIE = 0.01  # times within 1 % are a tie: that is what repeated sessions differ by


class Ranked(NamedTuple):
    """A variant that may be dispatched, its time, and of the kind compared the newest measurement and all samples."""

    variant: Variant
    time_us: float
    measurement: Measurement
    samples: Sequence[Sample]

    @property
    def interval(self) -> Interval:
        """The confidence interval of its time."""
        return Interval.of(self.samples)


def preference(wanted: MeasuredAs | None = None) -> tuple[MeasuredAs, ...]:
    """The kinds of times, that which is asked for first, then those most like it."""
    if wanted in (MeasuredAs.WARM, MeasuredAs.GRAPH):
        return (wanted, *(kind for kind in reversed(MeasuredAs) if kind is not wanted))
    return tuple(dict.fromkeys((wanted or MeasuredAs.COLD, *MeasuredAs)))


def dispatchable(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The OK measurements of variants that nothing speaks against.

    A variant is out once it was wrong, and when it crashed or hung later than it last succeeded. Another
    source digest is another variant: a mended template starts anew.
    """
    listed = list(measurements)
    wrong = {m.variant for m in listed if m.outcome is Outcome.WRONG}
    failed: dict[Variant, datetime] = {}
    for m in listed:
        if m.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT):
            failed[m.variant] = max(m.measured_at, failed.get(m.variant, m.measured_at))
    good: dict[Variant, list[Measurement]] = defaultdict(list)
    for m in listed:
        if m.outcome is Outcome.OK and m.sample is not None and m.variant not in wrong:
            good[m.variant].append(m)
    return [
        m
        for variant, mine in good.items()
        if variant not in failed or max(o.measured_at for o in mine) > failed[variant]
        for m in mine
    ]


def times(measurements: Iterable[Measurement], wanted: MeasuredAs | None = None) -> dict[Variant, Ranked]:
    """One time for each variant: the median of its samples' medians.

    Times of different kinds are not comparable: those of the first kind of `preference` that there is count.
    """
    good = dispatchable(measurements)
    of_kind: dict[MeasuredAs, list[Measurement]] = defaultdict(list)
    for m in good:
        if m.sample is not None:
            of_kind[m.sample.measured_as].append(m)
    comparable = next((of_kind[kind] for kind in preference(wanted) if kind in of_kind), [])
    by_variant: dict[Variant, list[Measurement]] = defaultdict(list)
    for m in comparable:
        by_variant[m.variant].append(m)
    found = {}
    for variant, mine in by_variant.items():
        samples = [m.sample for m in mine if m.sample is not None]
        newest = max(mine, key=lambda m: m.measured_at)
        found[variant] = Ranked(variant, median(s.median_us for s in samples), newest, samples)
    return found


def ranked(measurements: Iterable[Measurement], wanted: MeasuredAs | None = None) -> list[Ranked]:
    """Dispatchable variants of one workload on one device, best first.

    Finalists, which were timed in turn, come before all others. Among variants within `TIE`
    of the fastest the simplest config comes first. Whoever won the finals of earlier searches stays first until another
    one is faster beyond the noise of both (`incumbent`).

    Args:
        wanted: the kind of times to go by, where there are any of it.
    """
    listed = list(measurements)
    kinds = {m.sample.measured_as for m in listed if m.sample is not None}
    kind = next((k for k in preference(wanted) if k in kinds), None)
    in_finals = [
        m
        for m in listed
        if m.outcome is not Outcome.OK or (m.final and m.sample and m.sample.measured_as is kind)
    ]
    finals = times(in_finals, wanted)
    rest = [r for variant, r in times(listed, wanted).items() if variant not in finals]
    kept = incumbent(
        in_finals, lambda some: {r.variant: r.interval for r in _by_time(times(some, wanted).values())}
    )
    order = sorted(_by_time(finals.values()), key=lambda r: r.variant != kept)
    return order + _by_time(rest)


def predicted(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The newest prediction of each variant, the fastest first."""
    newest = {p.variant: p for p in sorted(predictions, key=lambda p: p.predicted_at)}
    return sorted(newest.values(), key=lambda p: (p.predicted_us, p.variant.config.simplicity))


def best(measurements: Iterable[Measurement]) -> Measurement | None:
    """The newest measurement of the best variant, or None when nothing may be dispatched."""
    order = ranked(measurements)
    return order[0].measurement if order else None


def _by_time(candidates: Iterable[Ranked]) -> list[Ranked]:
    order = sorted(candidates, key=lambda r: r.time_us)
    if not order:
        return []
    tied = [r for r in order if r.time_us <= order[0].time_us * (1 + TIE)]
    return sorted(tied, key=lambda r: (r.variant.config.simplicity, r.time_us)) + order[len(tied) :]
