"""The progress of a tuning run: live on a terminal, plain lines elsewhere, nothing with ``--json``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparsegen.cli.parts.common import make_console
from sparsegen.cli.parts.progress_lines import facts, plain_lines
from sparsegen.tuning.report import Progress, Status, silent
from sparsegen.tuning_db.records import Measurement

BAR_WIDTH = 40


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


@contextmanager
def shown(*, as_json: bool) -> Iterator[Progress]:
    """The progress to hand to `sparsegen.tuning.tuner.tune`, shown on stderr until the block ends."""
    console = make_console(stderr=True)
    if as_json:
        yield silent
    elif not console.is_terminal:
        yield plain_lines(lambda line: console.print(line, soft_wrap=True))
    else:
        with Live(console=console, transient=True, refresh_per_second=8) as live:
            yield lambda status, measurement=None: live.update(panel(status))
