"""``sparsegen bench``: our variants and what users would pick instead, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from sparsegen.bench.baselines import baselines
from sparsegen.bench.drawn import ROWS, SUITE, distributions
from sparsegen.bench.results import result_file
from sparsegen.bench.results.compare import compare
from sparsegen.bench.results.results import DEFAULT, IN_GRAPH, Protocol, Results, Row
from sparsegen.bench.run.request import TUNED_AHEAD, Progress, Request, Step
from sparsegen.bench.run.run import Finished, run
from sparsegen.bench.run.tuned import budget_of
from sparsegen.bench.run.unseen import Unseen, without
from sparsegen.bench.suites import Suite, describe_suite, load_suite, suite_names
from sparsegen.cli.main import INTERRUPTED
from sparsegen.cli.parts.bench_options import (
    Drawing,
    cases_of_matrix,
    cases_of_sizes,
    cases_of_suites,
    chosen_baselines,
    dtypes_given,
    named,
    of_dtypes,
)
from sparsegen.cli.parts.bench_text import (
    comparison_parts,
    config_parts,
    missing_lines,
    row_line,
    row_table,
    summary_table,
)
from sparsegen.cli.parts.common import (
    OUTPUT,
    EnumChoice,
    FiniteRange,
    Part,
    db_option,
    device_option,
    emit,
    json_option,
    make_console,
    note_emulator,
    word_option,
)
from sparsegen.cli.parts.engines import EngineName, Places, devices_option
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options
from sparsegen.cli.parts.problems import ProblemOptions, repeatable_problem_options
from sparsegen.cli.parts.streams import visible
from sparsegen.measure.l2 import L2
from sparsegen.system.publish import publish_text, refuse_other, reported, require_place
from sparsegen.system.quantities import counted


@click.command()
@click.option("--suite", "suites", multiple=True, metavar="NAME", help="A suite of --list; may be repeated.")
@click.option(
    "--rows", type=click.IntRange(min=1), metavar="N",
    help=f"With --suite drawn: how many problems of the --operator to draw; default {ROWS}.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(path_type=Path), help="Folder of matrix files, for the suites that need one."
)
@matrix_options
@repeatable_problem_options
@click.option("--case", "parts", multiple=True, metavar="TEXT", help="Only cases whose name contains this.")
@click.option("--only", multiple=True, metavar="BASELINE", help="Take only this one; may be repeated.")
@click.option("--except", "left_out", multiple=True, metavar="BASELINE", help="Leave this one out.")
@click.option(
    "--untuned-without",
    "unseen",
    type=EnumChoice(Unseen),
    multiple=True,
    help="Also time what dispatch takes without the packaged results of the row's pattern, of its shape, or of all "
    "shapes of its suite; may be repeated.",
)
@click.option(
    "--baseline", "own", multiple=True, metavar="NAME=PATH.so:SYMBOL",
    help="A baseline of your own; see docs/benchmarks.md.",
)  # fmt: skip
@click.option(
    "--configs", multiple=True, metavar="FAMILY[@BASE][:KEY=VALUE,...;...]|FILE.json",
    help="Try every combination of these settings of a family; see docs/benchmarks.md.",
)  # fmt: skip
@click.option(
    "--show", type=click.IntRange(min=1), default=8, show_default=True, metavar="N",
    help="With --configs: list the fastest N.",
)  # fmt: skip
@click.option(
    "--tune", default="off", show_default=True, metavar="off|quick|normal|SECONDS|N-trials",
    help="Tune every row first that has no finished tuning: for so long, or until so many variants were tried.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True,
    help="With --tune: rows to tune side by side on each device before they are measured: all; with --limit some.",
)  # fmt: skip
@word_option("--l2", default=L2.COLD, help="L2 before each call: overwritten, then also read, or left.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Turns of each baseline."
)
@click.option(
    "--samples", type=click.IntRange(min=1), default=20, show_default=True, help="Timed calls of one turn."
)
@db_option
@device_option
@devices_option
@click.option(
    *OUTPUT, type=click.Path(path_type=Path, dir_okay=False),
    help="Result file (JSON): rows that it holds stay, the others are added.",
)  # fmt: skip
@click.option(
    "--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the table as CSV too."
)
@click.option(
    "--limit", type=FiniteRange(min=0, min_open=True), metavar="SECONDS", help="Begin no row later."
)
@click.option("--remeasure", is_flag=True, help="Measure rows anew that the result file holds.")
@click.option(
    "--compare", "older", type=click.Path(path_type=Path), help="Show what changed against a result file."
)
@click.option("--list", "show_list", is_flag=True, help="List suites and baselines, and measure nothing.")
@json_option
@click.pass_context
def command(
    context: click.Context,
    suites: tuple[str, ...],
    rows: int | None,
    data: Path | None,
    matrix_file: MatrixOptions,
    combinations: Sequence[ProblemOptions],
    parts: tuple[str, ...],
    only: tuple[str, ...],
    left_out: tuple[str, ...],
    unseen: tuple[Unseen, ...],
    own: tuple[str, ...],
    configs: tuple[str, ...],
    show: int,
    tune: str,
    jobs: int,
    l2: L2,
    rounds: int,
    samples: int,
    db: str | None,
    device: str | None,
    devices: str | None,
    output: Path | None,
    csv_file: Path | None,
    limit: float | None,
    remeasure: bool,
    older: Path | None,
    show_list: bool,
    as_json: bool,
) -> None:
    """Time our variants beside cuBLAS, cuSPARSE and PyTorch, on one matrix or on suites of workloads.

    Every result is checked against float64 first. Times are device times of single calls, medians of all
    turns. A baseline that crashes, hangs or is wrong loses its cell and nothing else.

    With --devices and --tune, rows are first tuned on all of these devices; they are measured on the first.

    With --matrix the options that say what is computed may be repeated, and every combination of them is a row; so they
    may without one, of operators whose mask comes with the call, such as --operator dsd -m 4096 -k 4096. A suite
    says what its rows compute; of these options it heeds --dtype, for those of its rows alone. The suite drawn is
    of one --operator, and draws other problems for every --seed.
    """
    if show_list:
        _list(data, as_json)
        return
    has_matrix = matrix_file.file is not None
    has_pattern = combinations[0].problem_type.has_pattern
    if rows is not None and SUITE not in suites:
        raise click.UsageError(f"--rows says how many problems to draw: it needs --suite {SUITE}")
    if bool(suites) == (has_matrix or not (has_pattern or SUITE in suites)):
        raise click.UsageError(
            "give --matrix FILE, or --suite NAME (see --list); or the sizes of an --operator whose mask comes with "
            "the call"
        )
    if not has_matrix and replace(matrix_file, seed=0) != MatrixOptions(None):
        raise click.UsageError(
            "--tensor, --drop-zeros, --memory-limit and --transpose say how --matrix is read: give it, or drop them"
        )
    if has_matrix and not has_pattern:
        raise click.UsageError(f"{combinations[0].operator} takes its mask with every call: drop --matrix")
    budget_of(tune)
    if csv_file is not None:
        refuse_other(csv_file, ".csv")
        require_place(csv_file)
    before = result_file.read(older) if older else None
    if suites:
        asked = Drawing(combinations[0].problem_type.operator, matrix_file.seed, rows or ROWS)
        cases = of_dtypes(cases_of_suites(suites, data, asked), dtypes_given(combinations))
    elif has_matrix:
        cases = cases_of_matrix(matrix_file, combinations)
    else:
        cases = cases_of_sizes(combinations)
    unasked = () if SUITE in suites else [name for name in (DEFAULT, IN_GRAPH) if name not in only]
    places = Places(EngineName.LOCAL, device, devices, None).local()
    where = places[0]
    request = Request(
        cases=named(cases, parts),
        baselines=chosen_baselines(only, (*left_out, *unasked), own, configs, without(unseen, cases)),
        device=where,
        devices=places,
        protocol=Protocol(l2, rounds, samples, tune),
        db=db,
        output=output,
        remeasure=remeasure,
        seconds=limit,
        jobs=jobs,
        command=context.meta["sparsegen.command"],
    )
    note_emulator([where], as_json=as_json)
    done: list[Row] = []
    try:
        with _progress(done, as_json=as_json) as progress:
            finished = run(request, progress)
    except KeyboardInterrupt:
        kept = f"; {output} holds them" if output and done else ""
        click.echo(visible(f"interrupted after {counted(len(done), 'row')}{kept}"), err=True)
        if as_json:
            raise  # like every error, JSON on stdout
        if done:
            emit(False, {}, row_table(done), summary_table(done))
        raise click.exceptions.Exit(INTERRUPTED) from None
    if csv_file is not None:
        with reported(csv_file):
            publish_text(csv_file, result_file.to_csv(finished.results))
    _show(finished, before, output, configs=show if configs else 0, as_json=as_json)


def _show(
    finished: Finished, before: Results | None, output: Path | None, *, configs: int, as_json: bool
) -> None:
    results = finished.results
    comparison = compare(before, results) if before is not None else None
    parts: list[Part] = []
    for suite in dict.fromkeys(row.suite for row in results.rows):
        parts += [
            f"\n{suite} on {results.device.name}",
            row_table(r for r in results.rows if r.suite == suite),
        ]
    parts += config_parts(results.rows, configs)
    parts += ["", summary_table(results.rows), ""]
    parts += missing_lines(results, finished.missing)
    parts += [f"skipped: {key}: {reason}" for key, reason in finished.skipped]
    if comparison is not None:
        parts += comparison_parts(comparison)
    if finished.left:
        parts.append(f"time is up: {counted(finished.left, 'row')} left; the same command goes on with them")
    if output is not None:
        parts.append(f"{counted(len(finished.measured), 'row')} measured, {finished.kept} kept, in {output}")
    facts = {
        "results": json.loads(result_file.dump(results)),
        "measured": [str(key) for key in finished.measured],
        "kept": finished.kept,
        "left": finished.left,
        "skipped": {str(key): reason for key, reason in finished.skipped},
        "missing": dict(finished.missing),
    }
    if comparison is not None:
        facts["differing"] = [
            {"row": str(c.key), "baseline": c.baseline, "ratio": c.ratio, "outcome": c.outcome}
            for c in comparison.differing
        ]
    emit(as_json, facts, *parts)


@contextmanager
def _progress(done: list[Row], *, as_json: bool) -> Iterator[Progress]:
    """A line on stderr for each row; on a terminal also what is being done."""
    console = make_console(stderr=True)
    last = time.monotonic()
    status = console.status("starting") if console.is_terminal and not as_json else None

    def show(step: Step) -> None:
        nonlocal last
        if step.row is not None:
            seconds, last = time.monotonic() - last, time.monotonic()
            done.append(step.row)
            if not as_json:
                console.print(
                    f"[{step.index + 1} of {step.total}, {seconds:.1f} s] {row_line(step.row)}",
                    soft_wrap=True,
                )
        elif step.doing == TUNED_AHEAD and not as_json:
            console.print(f"[{step.index + 1} of {step.total}] {step.key}: tuned", soft_wrap=True)
            last = time.monotonic()
        elif status is not None:
            status.update(f"{step.index + 1} of {step.total}: {step.key}: {step.doing}")

    if status is None:
        yield show
    else:
        with status:
            yield show


def _list(data: Path | None, as_json: bool) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("suite", "cases", "rows", "what it is"):
        table.add_column(heading)
    suites = [describe_suite(n) if data is None else _described(n, data) for n in suite_names()]
    for suite in suites:
        needs_data = suite.needs_data and not suite.cases
        counts = ("", "--data") if needs_data else (str(len(suite.cases)), str(suite.rows))
        table.add_row(suite.name, *counts, suite.description)
    table.add_row(
        SUITE, "", "--rows", f"problems drawn by --seed, of --operator {', '.join(distributions())}"
    )
    facts = [
        {
            "suite": suite.name,
            "cases": len(suite.cases),
            "rows": suite.rows,
            "needs_data": suite.needs_data,
            "description": suite.description,
            "sources": suite.sources,
        }
        for suite in suites
    ]
    names = ", ".join(baselines())
    drawn = {operator: dict(of.words) for operator, of in distributions().items()}
    facts_of_all = {"suites": facts, "drawn": drawn, "baselines": list(baselines())}
    emit(as_json, facts_of_all, table, f"\nbaselines: {names}")


def _described(name: str, data: Path) -> Suite:
    suite = describe_suite(name)
    return load_suite(name, data) if suite.needs_data else suite
