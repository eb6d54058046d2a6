"""``sparsegen lookup``: what would run for a matrix, and why."""

from __future__ import annotations

import click

from sparsegen import api
from sparsegen.cli.parts.common import (
    EnumChoice,
    asked_db_option,
    deterministic_option,
    device_option,
    emit,
    json_option,
    word_option,
)
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options
from sparsegen.cli.parts.problems import ProblemOptions, problem_options
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import Dense, OnMiss
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.records import MeasuredAs


@click.command()
@matrix_options
@problem_options()
@device_option
@asked_db_option
@word_option(
    "--on-miss",
    default=OnMiss.NEAREST,
    help="What to do when neither this workload nor one like it was measured.",
)
@deterministic_option
@word_option(
    "--dense",
    default=Dense.AUTO,
    help="Whether a dense product may run instead: auto where it takes less time.",
)
@click.option(
    "--l2", type=EnumChoice(MeasuredAs), help="What the times that count are measured as; default cold."
)
@json_option
def command(
    matrix_file: MatrixOptions,
    wanted: ProblemOptions,
    device: str | None,
    db: str | None,
    on_miss: OnMiss,
    deterministic: bool,
    dense: Dense,
    l2: MeasuredAs | None,
    as_json: bool,
) -> None:
    """Say what would run for this matrix, and why. Nothing is compiled or measured."""
    found, problem = wanted.workload(matrix_file.reader)
    choice = api.lookup(
        found if problem.has_pattern else None,
        problem,
        on_miss=on_miss,
        dense=dense,
        l2=l2,
        deterministic=deterministic or None,
        device=device,
        db=db,
    )
    emit(as_json, as_data(choice), choice.explain())


def as_data(choice: Choice) -> Json:
    """A choice as JSON values; times in microseconds, distances in octaves."""
    return {
        "problem": choice.problem.named(),
        "family": choice.family.name,
        "config": choice.config.to_dict(),
        "how": str(choice.how),
        "why": choice.why,
        "expected_us": choice.expected_us,
        "predicted_us": choice.predicted_us,
        "sparse_us": None if choice.sparse is None else choice.sparse.us,
        "sparse_source": None if choice.sparse is None else str(choice.sparse.source),
        "dense_us": choice.dense_us,
        "dense_source": None if choice.dense is None else str(choice.dense.source),
        "faster": str(choice.faster),
        "dense_is_faster": choice.dense_is_faster,
        "use_dense": choice.use_dense,
        "raced": [
            {
                "task": str(probe.task),
                "called": str(probe.called),
                "context": probe.context,
                "sparse_us": probe.sparse_us,
                "dense_us": probe.dense_us,
                "measured_at": probe.measured_at.isoformat(),
            }
            for probe in choice.raced
        ],
        "neighbours": [
            {
                "problem": n.workload.problem.named(),
                "nnz": n.workload.features.nnz,
                "fingerprint": n.workload.fingerprint,
                "device": n.device.key,
                "distance": n.distance,
            }
            for n in choice.neighbours
        ],
    }
