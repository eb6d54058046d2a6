"""``sparsegen tune-model --example-inputs``: tune what a call of the model computes, and decide inside the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparsegen.cli.parts.common import Listing, emit
from sparsegen.cli.parts.engines import Places
from sparsegen.cli.parts.searches import watched
from sparsegen.cli.parts.torch_models import model_and_inputs
from sparsegen.operators import Quantization
from sparsegen.settings import Settings
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.report import Budget
from sparsegen.tuning_db.store import Store

if TYPE_CHECKING:
    from sparsegen.integrations.torch.models.model_tuning import InSituTuning

SAID_BY_MODEL = ("tokens", "tensors", "dtype", "layout", "epilogue", "memory_limit")


def require_alone(context: click.Context) -> None:
    """Raises click.UsageError for options whose answer the model and its inputs are."""
    given = [
        name
        for name in SAID_BY_MODEL
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        words = ", ".join("--tensor" if n == "tensors" else "--" + n.replace("_", "-") for n in given)
        raise click.UsageError(f"--example-inputs go without {words}: the model and its inputs say so")


def tune_in_situ(
    model: Path,
    example_inputs: str,
    *,
    min_sparsity: float,
    exclude: Sequence[str],
    capture: bool,
    budget: Budget,
    again: bool,
    baselines: bool,
    rounding: Quantization | None,
    places: Places,
    db: str | None,
    as_json: bool,
) -> InSituTuning:
    """Load a model and its inputs, tune, decide, print, and return what came of it.

    Raises:
        click.UsageError: several devices.
        OperandError, MatrixError, PackageMissingError: a model or inputs that cannot be had.
        As `sparsegen.integrations.torch.tune_model`.
    """
    device = places.only
    if device is None:
        raise click.UsageError("--example-inputs run the model, on one device of this host: give --device")
    loaded, inputs = model_and_inputs(model, example_inputs, device)
    from sparsegen.integrations.torch.models.model_tuning import ModelPlan

    plan = ModelPlan(
        loaded, inputs, least_sparsity=min_sparsity, exclude=exclude, capture=capture, rounding=rounding
    )
    place = db or Settings.from_environment().db
    with places.opened(place) as engine, Store.open(place) as store, watched(as_json=as_json) as watch:
        found = plan.tune(
            engine, store, str(place), budget=budget, again=again, baselines=baselines, watch=watch
        )
        location = str(store.location)
    data = {"source": str(model), "example_inputs": example_inputs, **found.to_dict(), "database": location}
    emit(as_json, data, _table(found), "\n".join(_lines(found, location)))
    return found


def _table(found: InSituTuning) -> Listing:
    """Table of the layers that were tried inside the model."""
    table = Listing("layers", "sparse", "before", "")
    report = found.report
    for step in () if report is None or report.in_situ is None else report.in_situ.steps:
        names = ", ".join(step.layers[:3]) + (
            f" and {len(step.layers) - 3} more" if len(step.layers) > 3 else ""
        )
        form = [w for w, is_so in (("one launch", step.form.one_launch), ("fused", step.form.fused)) if is_so]
        state = ", ".join(["sparse", *form]) if step.kept else "dense"
        table.add_row(names, microseconds(step.sparse_us), microseconds(step.dense_us), state)
    return table


def _lines(found: InSituTuning, location: str) -> Iterator[str]:
    if found.report is not None:
        yield str(found.report)
    counts = Counter(outcome.state for outcome in found.searches)
    yield f"{len(found.searches)} searches: " + ", ".join(
        f"{count} {state}" for state, count in counts.items()
    )
    for o in found.failed:
        yield f"failed: {o.search.layers[0].name} for {o.search.problem.n} tokens: {o.reason}"
    yield f"recorded in {location}"
    if found.was_interrupted:
        yield "Interrupted: the same command goes on from here."
    else:
        yield "sparsegen.integrations.torch.tune_model with the same database leaves a model so."
