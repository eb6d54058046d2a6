"""``sparsegen tune --for``: predict the fastest variants on a device that is not here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparsegen.cli.parts.common import Part, emit, make_console
from sparsegen.cli.parts.progress import BAR_WIDTH
from sparsegen.cli.parts.progress_lines import SECONDS_BETWEEN_LINES
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning.report import Budget
from sparsegen.tuning.search.predicted_search import PredictResult, Progress, Status, tune_for
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.records import Basis, Prediction
from sparsegen.tuning_db.store import Store

SHOWN = 8  # number of the fastest variants shown
BASES = {Basis.MODEL: "cost model", Basis.SCALED: "scaled from a like device"}
NOTE = "Predicted, not measured: the first `sparsegen tune` on the device checks these variants."


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a search for a device by description; see `tune_for`."""

    target: str
    families: tuple[str, ...]
    budget: Budget
    db: str | None
    again: bool
    allow_overflow: bool


def run(request: Request, matrix: CsrMatrix, problem: Problem, *, as_json: bool) -> bool:
    """Predict, record and print; whether Ctrl-C ended it."""
    target = find_target(request.target)
    place = request.db or Settings.from_environment().db
    with Store.open(place) as store, shown(as_json=as_json) as progress:
        result = tune_for(
            target,
            matrix,
            problem,
            store=store,
            families=request.families or None,
            budget=request.budget,
            progress=progress,
            again=request.again,
            allow_overflow=request.allow_overflow,
        )
    location = str(Location.parse(place))
    emit(as_json, as_data(result, location), *_as_text(result, location))
    return result.was_interrupted


def as_data(result: PredictResult, location: str) -> Json:
    """The result as JSON values; times in microseconds."""
    problem, status = result.workload.problem, result.status
    return {
        "problem": problem.named(),
        "fingerprint": result.workload.fingerprint,
        "target": result.target.name,
        "device": result.target.device.key,
        "measured": False,
        "predictions": [_described(p) for p in result.predictions],
        "trials": {"compiled": status.compiled, "failed": status.failed, "resumed": status.resumed},
        "space_size": result.space_size,
        "left_out": result.left_out,
        "counts_instructions": result.counts_instructions,
        "seconds": status.seconds,
        "interrupted": result.was_interrupted,
        "database": location,
    }


def _described(p: Prediction) -> Json:
    return {
        "family": p.variant.family,
        "config": p.variant.config.to_dict(),
        "source_digest": p.variant.source_digest,
        "predicted_us": p.predicted_us,
        "basis": str(p.basis),
        "model": p.model,
        "registers": p.registers,
        "spill_bytes": p.spill_bytes,
    }


def _as_text(result: PredictResult, location: str) -> list[Part]:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("problem", result.workload.problem.in_words(result.workload.features.density))
    facts.add_row("device", f"{result.target.device.name}, as {result.target.name} describes it")
    best, status = result.predictions[0], result.status
    facts.add_row("variant", f"{best.variant.family}: {best.variant.config.settings}")
    facts.add_row("predicted", f"{microseconds(best.predicted_us)} ({BASES[best.basis]})")
    for name, why in result.left_out.items():
        facts.add_row(f"no {name}", f"the matrix does not suit it; it must hold: {why}")
    facts.add_row(
        "search",
        f"{status.compiled} compiled, {status.failed} failed, {status.resumed} known from before, of "
        f"{result.space_size} valid configs in {status.seconds:.1f} s",
    )
    if not result.counts_instructions:
        facts.add_row(
            "code", "instructions are not counted: no disassembler is installed (cuobjdump, nvdisasm)"
        )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("predicted", "registers", "spilled bytes", "variant"):
        table.add_column(name, no_wrap=name != "variant", overflow="fold")
    for p in result.predictions[:SHOWN]:
        code = ("" if value is None else str(value) for value in (p.registers, p.spill_bytes))
        table.add_row(microseconds(p.predicted_us), *code, str(p.variant.config))
    parts: list[Part] = [facts, Text(""), table, Text(""), Text(f"recorded in {location}. {NOTE}")]
    if result.was_interrupted:
        return [*parts, Text("Interrupted: this is the best so far; the same command goes on from here.")]
    return parts


def _line(status: Status) -> str:
    best = f"best {microseconds(status.best.predicted_us)}, " if status.best else ""
    left = f", {status.seconds_left:.0f} s left" if math.isfinite(status.seconds_left) else ""
    return f"predicting: {best}{status.tried} of {status.planned} compiled{left}"


def _lines(write: Callable[[str], None]) -> Progress:
    """Returns a progress that writes at most one line a second."""
    last = -math.inf

    def show(status: Status) -> None:
        nonlocal last
        if status.seconds - last >= SECONDS_BETWEEN_LINES:
            last = status.seconds
            write(f"{status.seconds:6.1f} s  {_line(status)}")

    return show


def _panel(status: Status) -> Table:
    table = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, status.planned), completed=status.tried, width=BAR_WIDTH)
    table.add_row(bar, Text(_line(status)))
    return table


@contextmanager
def shown(*, as_json: bool) -> Iterator[Progress]:
    """The progress to hand to `tune_for`, shown on stderr until the block ends; nothing with ``--json``."""
    console = make_console(stderr=True)
    if as_json:
        yield lambda status: None
    elif not console.is_terminal:
        yield _lines(lambda line: console.print(line, soft_wrap=True))
    else:
        with Live(console=console, transient=True, refresh_per_second=8) as live:
            yield lambda status: live.update(_panel(status))
