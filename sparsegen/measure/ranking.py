"""Search for the fastest of several implementations, in a short time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.measure.clock import Call, Clock
from sparsegen.measure.l2 import L2

WARMUP = 2
SAMPLES = 7  # samples of each
SECONDS = 0.03  # upper limit for the samples of each; the host's clock suffices for longer calls
HOPELESS = 5.0  # times the time of the fastest so far: slower ones are called twice and no more
HOST_SECONDS = 1e-3  # more than a call's way through the host ever takes


def rough_us(
    call: Call, executor: Executor, clock: Clock, *, fastest_us: float = math.inf, l2: L2 = L2.COLD
) -> float:
    """Microseconds of a call; of one that is slow, or out of the question, as the host sees them.

    Some of cuSPARSE's algorithms take seconds where others take milliseconds.

    Args:
        fastest_us: the fastest time of those before it.
    """
    for _ in range(2):  # the first loads what it needs
        began = time.perf_counter()
        call()
        executor.synchronize()
        seconds = time.perf_counter() - began
        if seconds < SECONDS and seconds - HOST_SECONDS < HOPELESS * fastest_us * 1e-6:
            lead = clock.lead_for(call)
            timing = clock.time(call, samples=SAMPLES, l2=l2, budget_s=SECONDS, warmup=WARMUP, lead=lead)
            return timing.median_us
    return seconds * 1e6


def rough_times(calls: Sequence[Call], executor: Executor, clock: Clock, l2: L2) -> list[float]:
    """`rough_us` of each of several calls."""
    times: list[float] = []
    for call in calls:
        times.append(rough_us(call, executor, clock, fastest_us=min(times, default=math.inf), l2=l2))
    return times


def ranked(calls: Sequence[Call], executor: Executor, clock: Clock, l2: L2) -> list[int]:
    """The numbers of the calls, the fastest first; nothing is timed where there is one."""
    if len(calls) < 2:
        return list(range(len(calls)))
    return fastest_first(rough_times(calls, executor, clock, l2))


def fastest_first(times: Sequence[float]) -> list[int]:
    """The numbers of the times, from the shortest on."""
    return [int(i) for i in np.argsort(times, kind="stable")]
