"""Studies whose points are rows of ``sparsegen bench``: lists of problems, our variants and libraries side by side."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.markdown import figure, times
from benchmarks.papers.budget import Budget
from benchmarks.papers.study import ALL, PARTS, Document, Point, Progress, Setting, Study
from benchmarks.study import result_file
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results import result_file as bench_file
from sparsegen.bench.results.results import TUNED, Results, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.bench.suites import load_suite
from sparsegen.cli.main import cli, recorded_command

ROWS, RATES = "rows", "rates"  # of a document: `Row` objects, and what the device reached
BENCH_START = 10.0  # seconds until processes of all baselines have begun
MOST_ROWS = 24  # of one ``bench``


class BenchStudy(Study):
    """A study that is one ``sparsegen bench`` after the other: each takes some rows that the raw file lacks.

    Attributes:
        suites: their names; all their rows are measured.
        folder: the one of real data whose matrices suites take, if they take any.
        stand_ins: suites that are measured in their place where no data are given.
        told: parts of names of cases that are measured first, in order.
        row_seconds: how long a row should take on one H200, with the search before it.
        options: of ``bench`` beside suites, cases, device, output and limit.
        tiny: the same for a test.
        tiny_suites, tiny_cases: suites of a test, if these are others, and parts of the names of its cases.
    """

    suites: Sequence[str]
    folder: str | None = None
    stand_ins: Sequence[str] = ()
    told: Sequence[str]
    row_seconds: float
    options: Sequence[str]
    tiny: Sequence[str]
    tiny_suites: Sequence[str] = ()
    tiny_cases: Sequence[str]

    def points(self, setting: Setting) -> Iterable[Point]:
        return ()

    def progress(self, setting: Setting) -> Progress:
        held, left = self._split(setting)
        return Progress(len(held), len(left), len(left) * self.row_seconds)

    def run(self, setting: Setting, budget: Budget, again: bool, together: int = 1, part: str = ALL) -> bool:
        if part == PARTS[False]:  # all rows are timed
            return True
        path = result_file(setting.device, self.raw)
        if again:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        _, left = self._split(setting)
        is_first = True
        while left:
            if not budget.allows(BENCH_START + self.row_seconds, first=is_first):
                click.echo(f"time is up: {len(left)} rows are left; the same command goes on")
                return False
            # Rows are tuned side by side before any of them is measured: no more of them than there is time for.
            most = max(1, min(MOST_ROWS, int((budget.left - BENCH_START) / self.row_seconds)))
            some = [case for case in left[:most] if case.suite == left[0].suite]
            is_first = False
            if self._measured(some, setting, budget):
                return False
            left = [case for case in left if case not in some]
        click.echo(f"{self.name}: complete")
        return True

    def _measured(self, cases: Sequence[Case], setting: Setting, budget: Budget) -> int:
        """Measure some cases of a suite; the number of rows for which there was no time.

        Raises:
            click.ClickException: ``bench`` failed as a whole.
        """
        words = ["--suite", cases[0].suite, *(word for case in cases for word in ("--case", case.name))]
        if self.folder is not None and setting.data.folder is not None:
            words += ["--data", str(setting.data.folder / self.folder)]
        words += self.tiny if setting.tiny else self.options
        output = str(result_file(setting.device, self.raw))
        words += ["--device", setting.device.backend, "--limit", f"{max(budget.left, 0.1):.1f}", "-o", output]
        click.echo(recorded_command(["bench", *words]))
        with contextlib.redirect_stdout(io.StringIO()) as told:  # in this process: a kill leaves none behind
            status = cli.main(["bench", *words, "--json"], prog_name="sparsegen", standalone_mode=False)
        document = json.loads(told.getvalue() or "{}")
        if status:
            raise click.ClickException(f"sparsegen bench: {document.get('error', {}).get('message')}")
        for row, why in document["skipped"].items():
            click.echo(f"left out: {row}: {why}")
        click.echo(
            f"{self.name}: {len(document['measured'])} rows measured, {document['left']} of these left"
        )
        return int(document["left"])

    def _split(self, setting: Setting) -> tuple[list[Case], list[Case]]:
        """The cases that the raw file holds in all types, and those that it does not; those that tell most first."""
        path = result_file(setting.device, self.raw)
        rows = bench_file.read(path).rows if path.is_file() else ()
        known = {(row.suite, row.case, row.dtype) for row in rows}
        held, left = [], []
        for case in sorted(self.cases(setting), key=self._place):
            is_held = all((case.suite, case.name, dtype) in known for dtype in case.dtypes)
            (held if is_held else left).append(case)
        return held, left

    def _place(self, case: Case) -> int:
        return next(
            (at for at, part in enumerate(self.told) if part in f"{case.suite} {case.name}"), len(self.told)
        )

    def cases(self, setting: Setting) -> list[Case]:
        """All cases; of a test those that its options name."""
        data = setting.data.folder if self.folder is not None else None
        suites = self.stand_ins if self.folder is not None and data is None else self.suites
        if setting.tiny and self.tiny_suites:
            suites = self.tiny_suites
        folder = None if data is None or self.folder is None else data / self.folder
        cases = [case for suite in suites for case in load_suite(suite, folder).cases]
        parts = self.tiny_cases if setting.tiny else ()
        return [case for case in cases if not parts or any(part in case.name for part in parts)]

    def read(self, path: Path) -> Document:
        return document_of(bench_file.read(path))


def document_of(results: Results) -> dict[str, Any]:
    """A bench's file as the studies' pages see it."""
    states = [row.state for row in results.rows if row.state]
    last = results.rows[-1].measured if results.rows else None
    return {
        ROWS: list(results.rows),
        RATES: results.rates,
        "device": results.device.name,
        "driver": results.device.driver,
        "date": last.date().isoformat() if last else "",
        "states": list(dict.fromkeys(states)),
    }


def of_suites(document: Document, *suites: str) -> list[Row]:
    """The rows of some suites."""
    return [row for row in document[ROWS] if row.suite in suites]


def ratio(rows: Iterable[Row], other: str, ours: str = TUNED) -> float | None:
    """Geometric mean of a baseline's time over ours, of the rows that have both; above 1 ours is faster."""
    found = _ratios(rows, other, ours)
    return geometric(found).value if found else None


def best(rows: Iterable[Row], other: str, ours: str = TUNED) -> str:
    """The largest of these ratios."""
    return times(max(_ratios(rows, other, ours), default=None))


def _ratios(rows: Iterable[Row], other: str, ours: str) -> list[float]:
    return [one / mine for row in rows if (one := row.us(other)) and (mine := row.us(ours))]


def tera_flops(row: Row, baseline: str) -> float | None:
    """Useful TFLOP/s."""
    us = row.us(baseline)
    return None if us is None else row.floor.flop / us / 1e6


def cells(row: Row, baselines: Mapping[str, str]) -> list[str]:
    """Microseconds of some baselines."""
    return [figure(row.us(name)) for name in baselines]
