"""``sparsegen job``: bundles for GPUs that cannot be reached from here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote
from typing import Any, cast

import click
from click.shell_completion import CompletionItem
from rich.text import Text

from sparsegen.cli.parts.common import (
    OUTPUT,
    Copied,
    F,
    FiniteRange,
    apply_options,
    db_option,
    emit,
    family_names,
    force_option,
    json_option,
    memory_limit_option,
)
from sparsegen.cli.parts.matrix_options import MatrixOptions, drop_zeros_option
from sparsegen.cli.parts.problems import ProblemOptions, repeatable_problem_options
from sparsegen.cli.tune_model import TokenCounts, model_layer_options, open_model, reading_shown
from sparsegen.operators import DType, Epilogue, Layout
from sparsegen.pruning.pruned_layers import matrix_of, pruned_layers
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.publish import refuse_existing
from sparsegen.system.quantities import counted, size_text
from sparsegen.tuning.jobs.bundle import open_bundle
from sparsegen.tuning.jobs.export import CANDIDATES, SECONDS_OF_ONE, Exported, Wanted, export_job
from sparsegen.tuning.jobs.job import find_target
from sparsegen.tuning.model import shared_searches
from sparsegen.tuning_db.layers import open_layers


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of every job.

    Attributes:
        target: the device, as the user names it.
        output: the bundle.
        families: names of the only ones; empty for all.
        candidates: their number for each workload.
        budget: seconds for the whole job; None for as many as its workloads need.
        with_values: include the matrices' values.
        force: overwrite an existing bundle.
    """

    target: str
    output: Path
    families: tuple[str, ...]
    candidates: int
    budget: float | None
    with_values: bool
    force: bool


def job_options(function: F) -> F:
    """``job``: `JobOptions`."""

    @functools.wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        job = JobOptions(**{field.name: given.pop(field.name) for field in fields(JobOptions)})
        if job.output.suffix.lower() != ".pyz":  # it might be one of the matrices, which would be overwritten
            raise click.BadParameter(f"{job.output} does not end in .pyz", param_hint="--output")
        refuse_existing(job.output, force=job.force)
        return function(*args, job=job, **given)

    options = (
        click.option(
            "--for",
            "target",
            required=True,
            metavar="DEVICE",
            shell_complete=job_target_names,
            help="h100 or another name, as of `tune --for`; sm_90 or another compute capability; a device's key (see "
            "`sparsegen db list`); or emulator.",
        ),
        click.option(
            *OUTPUT,
            required=True,
            type=click.Path(path_type=Path, dir_okay=False),
            help="The bundle, a .pyz file.",
        ),
        click.option(
            "--family",
            "families",
            multiple=True,
            shell_complete=family_names,
            help="Only this kernel family; may be repeated.",
        ),
        click.option(
            "--candidates",
            default=CANDIDATES,
            show_default=True,
            type=click.IntRange(min=1, max=4096),
            help="For each workload.",
        ),
        click.option(
            "--budget",
            type=FiniteRange(min=0, min_open=True, max=30 * 86400),
            metavar="SECONDS",
            help=f"Time for the whole job there; default {SECONDS_OF_ONE:g} s for each workload.",
        ),
        click.option(
            "--with-values",
            is_flag=True,
            help="Send the matrices' values along; else random ones are measured with.",
        ),
        force_option,
    )
    return apply_options(options, cast(F, command))


def job_target_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes the devices that a job can be made for."""
    from sparsegen.tuning.jobs.job import USUAL
    from sparsegen.tuning.prediction.targets import targets

    names = (*targets(), *(f"sm_{major}{minor}" for major, minor in USUAL), "emulator")
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group()
def command() -> None:
    """Bundles that measure on a GPU which cannot be reached from here; `sparsegen db import` takes their results."""


@command.command()
@click.option(
    "--matrix",
    "matrices",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Sparse matrix, as for `sparsegen tune`; may be repeated.",
)
@click.option("--tensor", help="Which array of files that hold several.")
@click.option("--transpose", is_flag=True, help="Take the matrices' transposes.")
@drop_zeros_option
@memory_limit_option
@repeatable_problem_options
@job_options
@db_option
@json_option
def export(
    matrices: tuple[Path, ...],
    tensor: str | None,
    transpose: bool,
    drop_zeros: bool,
    memory_limit: int | None,
    combinations: Sequence[ProblemOptions],
    job: JobOptions,
    db: str | None,
    as_json: bool,
) -> None:
    """Write one file that measures variants for these matrices where Python, NumPy, SciPy and a GPU are.

    Patterns go along without values unless --with-values says so. Options that say what is computed may be repeated:
    every matrix is a workload for each combination of them.
    """
    readers = [
        MatrixOptions(
            file, tensor, drop_zeros=drop_zeros, memory_limit=memory_limit, transpose=transpose
        ).reader
        for file in matrices or (None,)
    ]
    given = [wanted.workload(read) for read in readers for wanted in combinations]
    asked = [Wanted(matrix, problem, job.with_values) for matrix, problem in given]
    _export(asked, job, db, as_json)


@command.command("export-model")
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--tokens", type=TokenCounts(), required=True, help="As for `sparsegen tune-model`, such as 1,8,256."
)
@model_layer_options
@memory_limit_option
@job_options
@db_option
@json_option
def export_model(
    model: Path,
    tokens: tuple[int, ...],
    min_sparsity: float,
    tensors: tuple[str, ...],
    exclude: tuple[str, ...],
    dtype: DType,
    layout: Layout,
    epilogue: Epilogue,
    memory_limit: int | None,
    job: JobOptions,
    db: str | None,
    as_json: bool,
) -> None:
    """The same for every pruned layer of a model, as `sparsegen tune-model` takes them: one search for like layers."""
    weights = open_model(model, memory_limit)
    with reading_shown(as_json) as reading:
        found = pruned_layers(
            weights, tensors=tensors, exclude=exclude, least_sparsity=min_sparsity, reading=reading
        )
    searches = shared_searches(found.layers, tokens, dtype, layout, epilogue)
    asked = [Wanted(matrix_of(weights, s.layers[0]), s.problem, job.with_values) for s in searches]
    _export(asked, job, db, as_json)


def _export(asked: list[Wanted], job: JobOptions, db: str | None, as_json: bool) -> None:
    with open_layers(Settings.from_environment(), db) as known:
        made = export_job(
            asked,
            job.output,
            target=find_target(job.target, known),
            known=known,
            candidates=job.candidates,
            families=job.families or None,
            seconds=job.budget,
            report=_silent if as_json else _counted,
        )
    emit(as_json, _as_json(made, job.output), *_as_text(made, job.output))


def _silent(done: int, of: int) -> None:
    pass


def _counted(done: int, of: int) -> None:
    """A line on stderr that a terminal overwrites; of a log only the last."""
    is_terminal = sys.stderr.isatty()
    if is_terminal or done == of:
        click.echo(f"{chr(13) * is_terminal}{done} of {of} candidates", err=True, nl=done == of)


def _as_json(made: Exported, output: Path) -> Json:
    job = made.job
    return {
        "bundle": output,
        "job": made.digest,
        "sha256": made.sha256,
        "bytes": made.nbytes,
        "device": job.target.key,
        "compiled_by": job.compiler or None,
        "not_compiled_because": made.sources_alone or None,
        "failed": made.failed,
        "seconds": job.seconds,
        "tasks": [
            {
                "problem": t.workload.problem.named(),
                "fingerprint": t.workload.fingerprint,
                "candidates": len(t.candidates),
                "has_values": t.has_values,
            }
            for t in job.tasks
        ],
    }


def _as_text(made: Exported, output: Path) -> list[Text | Copied]:
    count = sum(len(task.candidates) for task in made.job.tasks)
    lines = [
        f"{output}: {count} candidates for {counted(len(made.job.tasks), 'workload')}, {size_text(made.nbytes)}"
    ]
    if made.failed:
        lines.append(f"{made.failed} candidates did not compile and were left out")
    if made.sources_alone:
        lines.append(f"Nothing is compiled, so that it needs nvcc where it runs: {made.sources_alone}")
    lines.append(f"SHA-256 {made.sha256}")
    there, here, result = (quote(str(name)) for name in (output.name, output, f"{output.stem}.result"))
    return [
        Text("\n".join(lines)),
        Copied("there:", f"python {there} run --out {result}"),
        Copied("and here again:", f"sparsegen db import {result} --bundle {here}"),
    ]


@command.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@json_option
def verify(bundle: Path, as_json: bool) -> None:
    """Check every file of BUNDLE, as data: nothing of it is run."""
    with open_bundle(bundle) as opened:
        opened.verify()
        count = len(opened.files)
        data = {"bundle": bundle, "job": opened.digest, "files": count, "tasks": len(opened.job.tasks)}
    emit(as_json, data, Text(f"{bundle}: {count} files, all are what the manifest says"))
