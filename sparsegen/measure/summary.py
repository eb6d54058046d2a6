"""Reduction of single times to a `Sample`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsegen.measure.clock import Timing
from sparsegen.tuning_db.records import MeasuredAs, Sample


def summarize(timings: Sequence[Timing], *, measured_as: MeasuredAs = MeasuredAs.COLD) -> Sample:
    """One sample of several runs: percentiles over all times, the lowest clock, every throttle reason."""
    times = np.concatenate([t.samples_us for t in timings])
    low, median, high = np.percentile(times, [10.0, 50.0, 90.0])
    clocks = [t.clock_mhz for t in timings if t.clock_mhz is not None]
    reasons = [t.throttle_reasons for t in timings if t.throttle_reasons is not None]
    return Sample(
        median_us=float(median),
        low_us=float(low),
        high_us=float(high),
        count=times.size,
        measured_as=measured_as,
        clock_mhz=min(clocks, default=None),
        throttle_reasons=int(np.bitwise_or.reduce(reasons)) if reasons else None,
    )
