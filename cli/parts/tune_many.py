"""Several searches of ``sparsegen tune``: for each problem that the options name, on each model of device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import click

from sparsegen.cli.parts.engines import Places
from sparsegen.cli.parts.searches import watched
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.operators.base.overflow import require_held
from sparsegen.tuning.engines.dealing import Outcome, deal
from sparsegen.tuning.engines.engine import Request, Task
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.tuner import TuneResult
from sparsegen.tuning_db.store import Store


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
