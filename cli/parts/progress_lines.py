"""The progress of a tuning run as plain lines: for files and pipes, and where rich is not installed."""

from __future__ import annotations

import math
from collections.abc import Callable

from sparsegen.system.quantities import microseconds
from sparsegen.tuning.report import Progress, Status
from sparsegen.tuning_db.records import Measurement, Workload

SECONDS_BETWEEN_LINES = 1.0
BASELINES = {"cublas": "dense", "cusparse": "cuSPARSE"}


def figure(value: float) -> str:
    """A number with at least three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rates(workload: Workload, median_us: float) -> tuple[float, float]:
    """Useful GFLOP/s, and GB/s with every operand moved once."""
    cost = workload.problem.cost(workload.features.nnz)
    scale = 1e-3 / max(median_us, 1e-9)
    return cost.flop * scale, cost.bytes * scale


def facts(status: Status) -> list[tuple[str, str]]:
    """Facts to show, as labels and values; of the best variant only the known ones."""
    shown: list[tuple[str, str]] = []
    if status.best is not None and status.best.sample is not None:
        time_us = status.best.sample.median_us
        gflops, gbytes = rates(status.workload, time_us)
        shown += [("best", microseconds(time_us)), ("GFLOP/s", figure(gflops)), ("GB/s", figure(gbytes))]
        for baseline in status.baselines:
            name = BASELINES.get(baseline.name, baseline.name)
            shown.append((f"× {name}", f"{baseline.sample.median_us / max(time_us, 1e-9):.2f}"))
    counts = status.counts
    of = f" of {status.planned}" if math.isfinite(status.planned) else ""
    shown.append(("trials", f"{counts.tried}{of}"))
    for label, number in (("failed", counts.failed), ("resumed", counts.resumed), ("pruned", counts.pruned)):
        if number:
            shown.append((label, str(number)))
    if math.isfinite(status.seconds_left):
        shown.append(("time left", f"{status.seconds_left:.0f} s"))
    return shown


def plain_lines(write: Callable[[str], None]) -> Progress:
    """Returns a progress that writes a line for every new phase and every better variant, else at most one a second."""
    last_time, last_phase, last_best = -math.inf, None, math.inf

    def show(status: Status, measurement: Measurement | None = None) -> None:
        nonlocal last_time, last_phase, last_best
        sample = status.best.sample if status.best else None
        best = sample.median_us if sample else math.inf
        is_news = status.phase is not last_phase or best < last_best
        if not is_news and status.seconds - last_time < SECONDS_BETWEEN_LINES:
            return
        last_time, last_phase, last_best = status.seconds, status.phase, best
        figures = ", ".join(f"{label} {value}" for label, value in facts(status))
        write(f"{status.seconds:6.1f} s  {status.phase.value}: {figures}")

    return show
