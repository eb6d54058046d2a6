"""Times of several ways to do the same on a GPU, for choices that are made when sizes are first met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

WARM_UP, ROUNDS = 2, 5
AHEAD_CYCLES = 4_000_000  # some 2 ms, in which the host enqueues a call while the device waits


def in_turn(
    runs: Sequence[Callable[[], object]],
    where: torch.device,
    *,
    is_ahead: bool = False,
    rounds: int = ROUNDS,
    before: Callable[[], object] | None = None,
) -> list[float]:
    """Median microseconds of each way on its GPU, some times in turn, without gradients.

    Args:
        is_ahead: the device is busy with something else while a call is enqueued, as in a CUDA graph; otherwise time of
            the host counts where the device waits for it.
        before: what runs before each call and is not timed, such as writing over the L2.
    """
    times: list[list[float]] = [[] for _ in runs]
    with torch.no_grad(), torch.cuda.device(where):
        for turn in range(WARM_UP + rounds):
            for run, found in zip(runs, times, strict=True):
                if before is not None:
                    before()
                us = microseconds(run, is_ahead)
                if turn >= WARM_UP:
                    found.append(us)
    return [statistics.median(found) for found in times]


def microseconds(run: Callable[[], object], is_ahead: bool) -> float:
    """What one call takes on the current stream of the current GPU; see `in_turn`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if is_ahead:
        torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
