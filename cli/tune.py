"""``sparsegen tune``: search for the fastest variant for a matrix and record it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

import click
from rich.table import Table
from rich.text import Text

from sparsegen.cli.main import INTERRUPTED
from sparsegen.cli.parts import tune_for
from sparsegen.cli.parts.called_again import CalledAgain
from sparsegen.cli.parts.common import (
    EMULATOR_NOTE,
    Copied,
    Part,
    db_option,
    deterministic_option,
    emit,
    family_names,
    json_option,
    note_emulator,
    overflow_option,
    target_option,
    word_option,
)
from sparsegen.cli.parts.engines import Places, engine_options
from sparsegen.cli.parts.limits import limit_options
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options
from sparsegen.cli.parts.problems import ProblemOptions, repeatable_problem_options
from sparsegen.cli.parts.progress import shown
from sparsegen.cli.parts.progress_lines import BASELINES, figure, rates
from sparsegen.cli.parts.searches import watched
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.operators.base.overflow import require_held
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.engines.dealing import Outcome, deal
from sparsegen.tuning.engines.engine import Request, Task
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.report import Flip
from sparsegen.tuning.tuner import Budget, SamplerName, TuneResult, tune
from sparsegen.tuning_db.incumbent import Interval
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.records import Measurement
from sparsegen.tuning_db.store import Store


@click.command()
@matrix_options
@repeatable_problem_options
@click.option(
    "--family",
    "families",
    multiple=True,
    shell_complete=family_names,
    help="Only this kernel family; may be repeated.",
)
@limit_options("the search")
@word_option(
    "--sampler",
    default=SamplerName.CANDIDATES,
    help="What chooses the next variant: our own model, or Optuna's TPE, Gaussian process (needs PyTorch) or chance.",
)
@overflow_option
@engine_options
@db_option
@target_option("Predict", " Compiles, and runs nothing.")
@click.option("--no-baselines", is_flag=True, help="Do not time dense and vendor routines.")
@click.option("--again", is_flag=True, help="Measure again what was recorded before, failures included.")
@deterministic_option
@json_option
def command(
    matrix_file: MatrixOptions,
    combinations: Sequence[ProblemOptions],
    families: tuple[str, ...],
    limits: Budget,
    sampler: SamplerName,
    allow_overflow: bool,
    places: Places,
    db: str | None,
    target: str | None,
    no_baselines: bool,
    again: bool,
    deterministic: bool,
    as_json: bool,
) -> None:
    """Search for the fastest variant for a matrix, verify it and record it.

    Every measurement is recorded at once: after Ctrl-C or a crash the same command goes on where it was. A variant
    that failed is tried once more by a later search; `sparsegen db forget` forgets what was recorded.

    Options that say what is computed may be repeated: each combination of them is a search of its own, and with
    --devices or --engine ray these are dealt to several devices.
    """
    workloads = [wanted.workload(matrix_file.reader) for wanted in combinations]
    if target is not None:
        _require_one(places, workloads, deterministic, sampler)
        wished = tune_for.Request(target, families, limits, db, again, allow_overflow)
        if tune_for.run(wished, *workloads[0], as_json=as_json):
            raise click.exceptions.Exit(INTERRUPTED)
        return
    place, where = db or Settings.from_environment().db, places.only
    location = str(Location.parse(place))
    called_again = CalledAgain(matrix_file, places.named, db or _shown_place(place))
    options: _Options = {
        "baselines": not no_baselines,
        "again": again,
        "seed": matrix_file.seed,
        "deterministic": deterministic or Settings.from_environment().deterministic,
        "sampler": sampler,
        "allow_overflow": allow_overflow,
    }
    if where is None or len(workloads) > 1:
        request = Request(workloads[0][1], limits, families or None, even_if_finished=True, **options)
        came_to = tune_many(workloads, request, places, place, note=EMULATOR_NOTE, as_json=as_json)
        _many(came_to, location, called_again, as_json)
        return
    note_emulator([where], as_json=as_json)
    ((a, problem),) = workloads
    with shown(as_json=as_json) as progress:
        result = tune(
            *(a, problem),
            device=where,
            store=place,
            families=families or None,
            budget=limits,
            progress=progress,
            **options,
        )
    emit(as_json, _as_json(result, location, called_again), *_as_text(result, location, called_again))
    if result.was_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


def _require_one(
    places: Places, workloads: Sequence[object], deterministic: bool, sampler: SamplerName
) -> None:
    """Raises UsageError for what a prediction does not take."""
    if places.are_named or len(workloads) > 1:
        raise click.UsageError(
            "--for predicts one workload for a device that is not here: give no --device, --devices or --engine, "
            "and each option once"
        )
    if deterministic or sampler is not SamplerName.CANDIDATES:
        raise click.UsageError(
            "--for ranks every variant by the cost model: give no --deterministic or --sampler"
        )


class _Options(TypedDict):
    """Options that one search and several take alike; see `sparsegen.tuning.tuner.tune`."""

    baselines: bool
    again: bool
    seed: int
    deterministic: bool
    sampler: SamplerName
    allow_overflow: bool


def _many(
    came_to: tuple[list[TuneResult], list[tuple[Task, Outcome]], bool],
    location: str,
    called_again: CalledAgain,
    as_json: bool,
) -> None:
    """Show what became of several searches, and end as the worst of them did."""
    results, others, was_interrupted = came_to
    told = [_as_json(result, location, called_again) for result in results]
    unfinished = [
        {"search": task.name, "device": task.model.key, "reason": str(outcome.error or "interrupted")}
        for task, outcome in others
    ]
    parts: list[Part] = []
    for result in results:
        parts += [*_as_text(result, location, called_again), ""]
    parts += [f"no result: {each['search']} on {each['device']}: {each['reason']}" for each in unfinished]
    data = {"searches": told, "unfinished": unfinished, "interrupted": was_interrupted, "database": location}
    emit(as_json, data, *parts)
    if was_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    require_success(others)


def _shown_place(place: str) -> str | None:
    """The database that the environment names, so that the command works elsewhere; no URL: it may hold a password."""
    return None if "://" in place or place == Settings.from_environment({}).db else place


def _comparison(result: TuneResult) -> str:
    """One honest sentence on the comparison with other libraries."""
    speedups = {
        name: speedup
        for baseline, name in BASELINES.items()
        if (speedup := result.speedup_over(baseline)) is not None
    }
    if not speedups:
        return result.baselines_skipped
    slower = [f"{name} is {1 / s:.2f} × faster" for name, s in speedups.items() if s < 1.0]
    faster = [f"{s:.2f} × faster than {name}" for name, s in speedups.items() if s >= 1.0]
    parts = ([" and ".join(faster).capitalize()] if faster else []) + slower
    warning = " Use the dense product for this matrix." if speedups.get("dense", 1.0) < 1.0 else ""
    return "; ".join(parts) + "." + warning


def _as_text(result: TuneResult, location: str, called_again: CalledAgain) -> list[Part]:
    winner, sample = result.winner, result.winner.sample
    assert sample is not None
    gflops, gbytes = rates(result.workload, sample.median_us)
    problem, features = result.workload.problem, result.workload.features
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("problem", problem.in_words(features.density))
    table.add_row("device", result.device.name)
    table.add_row("variant", _config_text(winner))
    table.add_row(
        "time",
        f"{microseconds(sample.median_us)} (80 % of {sample.count} calls between "
        f"{microseconds(sample.low_us)} and {microseconds(sample.high_us)}{_in_turn(winner)})",
    )
    table.add_row("rate", f"{figure(gflops)} GFLOP/s, {figure(gbytes)} GB/s")
    for baseline in result.baselines:
        name = BASELINES.get(baseline.name, baseline.name)
        table.add_row(name, f"{microseconds(baseline.sample.median_us)}, {baseline.version}")
    table.add_row("compared", _comparison(result))
    if winner.worst_error is not None:
        table.add_row("verified", f"worst error {winner.worst_error:.2f} of its bound against float64")
    if result.flip is not None:
        table.add_row("changed", _flip_text(result.flip))
    others = {name: m for name, m in result.family_winners.items() if m is not winner and m.sample}
    for name, m in others.items():
        assert m.sample is not None
        table.add_row(f"best {name}", microseconds(m.sample.median_us))
    for name, why in result.left_out.items():
        table.add_row(f"no {name}", f"the matrix does not suit it; it must hold: {why}")
    counts = result.counts
    table.add_row(
        "search",
        f"{counts.done} measured, {counts.failed} failed, {counts.resumed} known from before, of "
        f"{result.space_size} valid configs ({counts.pruned} pruned) in {result.seconds:.1f} s",
    )
    commands = (called_again.command(name, problem) for name in ("lookup", "source"))
    parts: list[Part] = [
        table,
        Copied(f"recorded in {location}; look up what runs, and read its source:", *commands),
    ]
    if winner.variant.config.is_known:
        call = called_again.python(problem, winner.variant.config)
        parts.append(Copied("this variant in Python, whatever is recorded later:", call))
    if result.was_interrupted:
        return [*parts, Text("Interrupted: this is the best so far; the same command goes on from here.")]
    return parts


def _in_turn(winner: Measurement) -> str:
    """Explains why the time may differ from the best that the search showed."""
    return "; timed again, in turn with the other finalists" * winner.final


def _flip_text(flip: Flip) -> str:
    if flip.cost is None:
        cost = "it was not timed again (--again does so)"
    elif flip.cost < 1:
        cost = f"today it takes {flip.cost:.3f} × the time, which is a tie, or it failed"
    else:
        cost = f"today it takes {flip.cost:.3f} × the time"
    return f"before, {_config_text(flip.before)} was the winner; {cost}"


def _config_text(measurement: Measurement) -> str:
    return f"{measurement.variant.family}: {measurement.variant.config.settings}"


def _as_json(result: TuneResult, location: str, called_again: CalledAgain) -> Json:
    sample = result.winner.sample
    assert sample is not None
    gflops, gbytes = rates(result.workload, sample.median_us)

    def described(m: Measurement) -> Json:
        assert m.sample is not None
        return {
            "family": m.variant.family,
            "config": m.variant.config.to_dict(),
            "source_digest": m.variant.source_digest,
            "median_us": m.sample.median_us,
            "low_us": m.sample.low_us,
            "high_us": m.sample.high_us,
            "interval_us": [(i := Interval.of([m.sample])).low_us, i.high_us],
            "samples": m.sample.count,
            "worst_error": m.worst_error,
            "registers": m.registers,
            "spill_bytes": m.spill_bytes,
            "prepare_seconds": m.prepare_seconds,
            "packed_bytes": m.packed_bytes,
        }

    counts, problem = result.counts, result.workload.problem
    return {
        "problem": problem.named(),
        "fingerprint": result.workload.fingerprint,
        "device": result.device.key,
        "winner": described(result.winner) | {"gflops": gflops, "gbytes_per_second": gbytes},
        "families": {name: described(m) for name, m in result.family_winners.items()},
        "trials": {
            "done": counts.done,
            "failed": counts.failed,
            "resumed": counts.resumed,
            "pruned": counts.pruned,
        },
        "pruned": dict(result.pruned),
        "left_out": dict(result.left_out),
        "space_size": result.space_size,
        "baselines": {
            b.name: {"median_us": b.sample.median_us, "version": b.version} for b in result.baselines
        },
        "speedup": {
            name: result.speedup_over(name) for name in BASELINES if result.speedup_over(name) is not None
        },
        "baselines_skipped": result.baselines_skipped,
        "flip": None
        if result.flip is None
        else {"before": described(result.flip.before), "cost": result.flip.cost},
        "seconds": result.seconds,
        "interrupted": result.was_interrupted,
        "database": location,
        "lookup": called_again.command("lookup", problem),
        "prepare": called_again.python(problem, result.winner.variant.config),
    }


def tune_many(
    workloads: Sequence[tuple[CsrMatrix, Problem]],
    request: Request,
    places: Places,
    place: str,
    *,
    note: str,
    as_json: bool,
) -> tuple[list[TuneResult], list[tuple[Task, Outcome]], bool]:
    """Deal a search for each workload and model to the devices.

    Args:
        request: request of each, but for its problem.
        place: place of the database.
        note: note to show if a device is an emulator.

    Returns:
        The results, the searches that have none with what became of them, and whether Ctrl-C ended it.

    Raises:
        MatrixError: values overflow, and the request does not let them.
        ConfigError: a family computes none of the operators.
        SparsegenError: see `sparsegen.tuning.engines.dealing.deal`.
    """
    for matrix, problem in workloads:
        require_held(problem, matrix, allow_overflow=request.allow_overflow)
    stop = threading.Event()
    with places.opened(place) as engine, watched(as_json=as_json) as watch, interruptible(stop):
        if any(model.backend == "emulator" for model in engine.models) and not as_json:
            click.echo(note, err=True)
        Store.open(place).close()
        tasks = [
            Task(
                problem.in_words(problem.features(matrix).density),
                model,
                replace(request, problem=problem),
                partial(_same, matrix),
            )
            for model in engine.models
            for matrix, problem in workloads
        ]
        outcomes = deal(tasks, engine, watch=watch, stop=stop)
    results = [o.found.result for o in outcomes if o.found is not None and o.found.result is not None]
    others = [
        (t, o) for t, o in zip(tasks, outcomes, strict=True) if o.found is None or o.found.result is None
    ]
    return results, others, stop.is_set()


def _same(matrix: CsrMatrix) -> CsrMatrix:
    """One that is there already."""
    return matrix


def require_success(others: Sequence[tuple[Task, Outcome]]) -> None:
    """Require that all searches succeeded.

    Raises:
        click.exceptions.Exit: a search failed; with its error's exit code.
    """
    codes = [outcome.error.exit_code for _, outcome in others if outcome.error is not None]
    if codes:
        raise click.exceptions.Exit(max(codes))
