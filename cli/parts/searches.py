"""The progress of several searches: a line for each on a terminal, plain lines elsewhere, nothing with ``--json``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparsegen.cli.parts.common import make_console
from sparsegen.cli.parts.progress import panel
from sparsegen.cli.parts.progress_lines import facts, plain_lines
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.engines.dealing import Outcome, Unwatched, Watch
from sparsegen.tuning.engines.engine import Task
from sparsegen.tuning.report import Progress, Status


class PlainWatch:
    """A line when a search begins, and its own lines while it goes on, each with its number.

    Args:
        write: takes a line.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._count, self._write = 0, write
        self._lines: dict[int, Progress] = {}

    def planned(self, count: int) -> None:
        self._count = count

    def began(self, number: int, task: Task, where: str) -> None:
        self._write(f"[{number + 1} of {self._count}] {task.name}, on {where}")
        self._lines[number] = plain_lines(lambda line: self._write(f"[{number + 1}] {line}"))

    def progressed(self, number: int, task: Task, status: Status) -> None:
        self._lines[number](status)

    def lost(self, number: int, task: Task, where: str, why: str) -> None:
        self._write(f"[{number + 1}] lost on {where or 'its way'}, and begun again: {why}")

    def ended(self, number: int, task: Task, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._write(f"[{number + 1}] failed: {outcome.error}")


class LiveWatch(PlainWatch):
    """Lines that stay for what began, was lost or failed; below them what goes on now.

    Of one search its panel is shown, of several a row of each.
    """

    def __init__(self, live: Live) -> None:
        super().__init__(lambda line: live.console.print(line, soft_wrap=True))
        self._live = live
        self._now: dict[int, tuple[Task, str, Status | None]] = {}
        self._done = 0

    def began(self, number: int, task: Task, where: str) -> None:
        super().began(number, task, where)
        self._now[number] = (task, where, None)
        self._show()

    def progressed(self, number: int, task: Task, status: Status) -> None:
        self._now[number] = (task, self._now[number][1], status)
        self._show()

    def lost(self, number: int, task: Task, where: str, why: str) -> None:
        super().lost(number, task, where, why)
        self._now.pop(number, None)
        self._show()

    def ended(self, number: int, task: Task, outcome: Outcome) -> None:
        super().ended(number, task, outcome)
        self._now.pop(number, None)
        self._done += 1
        self._show()

    def _show(self) -> None:
        self._live.update(self._picture())

    def _picture(self) -> RenderableType:
        if len(self._now) == 1:
            ((_, _, status),) = self._now.values()
            return Text("starting") if status is None else panel(status)
        table = Table(
            "", "device", "search", "", "best", "trials", "time left", box=None, padding=(0, 2, 0, 0)
        )
        for number, (task, where, status) in sorted(self._now.items()):
            table.add_row(
                f"[{number + 1}]", where, Text(task.name, overflow="ellipsis", no_wrap=True), *_cells(status)
            )
        return Group(Text(f"{self._done} of {self._count} searches done", style="bold"), table)


def _cells(status: Status | None) -> tuple[str, str, str, str]:
    """Phase, best time, trials and time left."""
    if status is None:
        return "starting", "", "", ""
    known = dict(facts(status))
    left = f"{status.seconds_left:.0f} s" if math.isfinite(status.seconds_left) else ""
    sample = status.best.sample if status.best else None
    return status.phase.value, microseconds(sample.median_us) if sample else "", known["trials"], left


@contextmanager
def watched(*, as_json: bool, console: Console | None = None) -> Iterator[Watch]:
    """The watch to hand to `sparsegen.tuning.engines.dealing.deal`, shown on stderr until the block ends."""
    console = console or make_console(stderr=True)
    if as_json:
        yield Unwatched()
    elif not console.is_terminal:
        yield PlainWatch(lambda line: console.print(line, soft_wrap=True))
    else:
        with Live(console=console, transient=True, refresh_per_second=8) as live:
            yield LiveWatch(live)
