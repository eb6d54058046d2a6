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
from benchmarks.papers.study import Document, Point, Setting, Study
from benchmarks.study import result_file
from sparsegen.bench.results import result_file as bench_file
from sparsegen.bench.results.results import TUNED, Results, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.cli.main import cli, recorded_command
from sparsegen.operators import DType

ROWS = "rows"  # of a document: `Row` objects


class BenchStudy(Study):
    """A study that is one ``sparsegen bench``, which goes on by itself where a time limit ended it.

    Attributes:
        suites: their names; all their rows are measured.
        folder: the one of real data whose matrices suites take, if they take any.
        stand_ins: suites that are measured in their place where no data are given.
        options: of ``bench`` beside suites, device, output and limit.
        tiny: the same for a test.
    """

    suites: Sequence[str]
    folder: str | None = None
    stand_ins: Sequence[str] = ()
    options: Sequence[str]
    tiny: Sequence[str]

    def points(self, setting: Setting) -> Iterable[Point]:
        return ()

    def run(self, setting: Setting, limit: float, again: bool) -> bool:
        path = result_file(setting.device, self.raw)
        if again:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        words = self.cases(setting)
        words += self.tiny if setting.tiny else self.options
        words += ["--device", setting.device.backend, "--limit", f"{max(limit, 0.1):.1f}", "-o", str(path)]
        click.echo(recorded_command(["bench", *words]))
        with contextlib.redirect_stdout(io.StringIO()) as told:  # in this process: a kill leaves none behind
            status = cli.main(["bench", *words, "--json"], prog_name="sparsegen", standalone_mode=False)
        document = json.loads(told.getvalue() or "{}")
        if status:
            raise click.ClickException(f"sparsegen bench: {document.get('error', {}).get('message')}")
        measured, left = len(document["measured"]), document["left"]
        for row, why in document["skipped"].items():
            click.echo(f"left out: {row}: {why}")
        click.echo(f"{self.name}: {measured} rows measured, {document['kept']} kept, {left} left")
        if not left:
            click.echo(f"{self.name}: complete")
        return not left

    def cases(self, setting: Setting) -> list[str]:
        """Options of ``bench`` that say what is measured."""
        if self.folder is None:
            return [word for suite in self.suites for word in ("--suite", suite)]
        data = setting.data.folder
        suites = self.stand_ins if data is None else self.suites
        words = [word for suite in suites for word in ("--suite", suite)]
        return words if data is None else [*words, "--data", str(data / self.folder)]

    def read(self, path: Path) -> Document:
        return document_of(bench_file.read(path))


def document_of(results: Results) -> dict[str, Any]:
    """A bench's file as the studies' pages see it."""
    states = [row.state for row in results.rows if row.state]
    last = results.rows[-1].measured if results.rows else None
    return {
        ROWS: list(results.rows),
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


def in_float32(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.dtype is DType.FLOAT32]
