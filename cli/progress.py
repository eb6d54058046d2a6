"""The progress of a tuning run: live on a terminal, plain lines elsewhere, nothing with ``--json``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparsegen.cli.common import make_console
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.report import Progress, Status, silent
from sparsegen.tuning_db.records import Measurement, Workload

SECONDS_BETWEEN_LINES = 1.0
CONTENDERS = {"cublas": "dense", "cusparse": "cuSPARSE"}
BAR_WIDTH = 40


def figure(value: float) -> str:
    """A number with at least three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rates(workload: Workload, median_us: float) -> tuple[float, float]:
    """Useful GFLOP/s, and GB/s with every operand moved once."""
    cost = workload.problem.cost(workload.features.nnz)
    scale = 1e-3 / max(median_us, 1e-9)
    return cost.flop * scale, cost.bytes * scale


def facts(status: Status) -> list[tuple[str, str]]:
    """What is worth showing, as labels and values; of the best only what is known."""
    shown: list[tuple[str, str]] = []
    if status.best is not None and status.best.sample is not None:
        time_us = status.best.sample.median_us
        gflops, gbytes = rates(status.workload, time_us)
        shown += [("best", microseconds(time_us)), ("GFLOP/s", figure(gflops)), ("GB/s", figure(gbytes))]
        for baseline in status.baselines:
            name = CONTENDERS.get(baseline.contender, baseline.contender)
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


def _variant(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    return str(measurement.variant.config)


def panel(status: Status) -> RenderableType:
    """The live display: a bar, the figures in columns, and the best config so far."""
    counts = status.counts
    total_time = status.seconds + status.seconds_left
    share = status.seconds / total_time if math.isfinite(total_time) and total_time > 0 else 0.0
    share = min(1.0, max(share, counts.tried / max(1, status.planned)))
    table = Table.grid(padding=(0, 3))
    shown_facts = facts(status)
    table.add_row(*(Text(label, style="dim") for label, _ in shown_facts))
    table.add_row(*(Text(value, style="bold" if label == "best" else "") for label, value in shown_facts))
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(total=1.0, completed=share, width=BAR_WIDTH), Text(status.phase.value))
    return Group(bar, table, Text(_variant(status.best), style="dim", overflow="ellipsis", no_wrap=True))


def plain_lines(write: Callable[[str], None]) -> Progress:
    """A line for every new phase and every better variant, and else one a second at the most."""
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


@contextmanager
def shown(*, as_json: bool, console: Console | None = None) -> Iterator[Progress]:
    """The progress to hand to `sparsegen.tuning.tuner.tune`, shown on stderr until the block ends."""
    console = console or make_console(stderr=True)
    if as_json:
        yield silent
    elif not console.is_terminal:
        yield plain_lines(lambda line: console.print(line, soft_wrap=True))
    else:
        with Live(console=console, transient=True, refresh_per_second=8) as live:
            yield lambda status, measurement=None: live.update(panel(status))
