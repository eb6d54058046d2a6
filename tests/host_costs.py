"""Costs of calls for this thread on the host, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

ROUNDS, BATCHES, CALLS = 7, 15, 20


def host_costs_us(*calls: Callable[[], object]) -> list[float]:
    """Microseconds of each call, all in turn: the smallest of several medians.

    The thread's own processor time counts, so that no time goes in for which another process had the core; what is left
    of a busy machine, its caches and clocks, comes and goes, and the smallest median is that of its best moment. The
    device's queue never fills.
    """
    import torch

    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            taken = []
            for _ in range(BATCHES):
                torch.cuda.synchronize()
                began = time.thread_time_ns()
                for _ in range(CALLS):
                    call()
                taken.append((time.thread_time_ns() - began) / CALLS / 1e3)
            best[i] = min(best[i], median(taken))
    return best
