"""The last round of a search: the finalists are verified anew and timed in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from sparsegen.measure.clock import Timing
from sparsegen.measure.session import Attempt
from sparsegen.measure.summary import summarize
from sparsegen.measure.worker import Measure
from sparsegen.tuning.loop import finalists
from sparsegen.tuning.loop.ledger import Ledger
from sparsegen.tuning.loop.measuring import Measuring
from sparsegen.tuning_db.records import Measurement, Variant

DRAWING = 1  # seed of operands that the search has not seen


def time_in_turn(
    best: Sequence[Measurement], seconds: float, measuring: Measuring, ledger: Ledger, ends: float = math.inf
) -> bool:
    """Times and records each of the best, for about ``seconds`` seconds; returns True if any is still right.

    Args:
        ends: deadline by `time.monotonic`, after which only a first right one is still timed.
    """
    running = {m.variant: measuring.binary(m.variant) for m in best}
    timings: dict[Variant, list[Timing]] = {variant: [] for variant in running}
    first: dict[Variant, Attempt] = {}  # first attempt of each: it holds the verified error
    rounds, samples = finalists.schedule(best, seconds)
    for number in range(rounds):
        for variant, compiled in list(running.items()):
            if any(timings.values()) and time.monotonic() >= ends:
                break
            request = Measure(
                compiled,
                samples=samples,
                first_samples=samples,
                verify=number == 0,
                drawing=DRAWING,
            )
            attempt = measuring.attempt(request)
            if attempt.measured.timing is None:
                del running[variant]
                failed = measuring.measurement(variant, compiled, attempt, None)
                ledger.record(replace(failed, final=True))
                continue
            timings[variant].append(attempt.measured.timing)
            first.setdefault(variant, attempt)
    for variant, compiled in running.items():
        if not timings[variant]:
            continue
        measurement = measuring.measurement(variant, compiled, first[variant], None)
        ledger.record(replace(measurement, sample=summarize(timings[variant]), final=True))
    return bool(running)
