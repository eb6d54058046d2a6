"""``sparsegen source``: the CUDA source of a variant, and what the compiler makes of it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from sparsegen import backends, kernels
from sparsegen.backends.cuda import inspection
from sparsegen.backends.cuda.compiler import CudaToolchain
from sparsegen.cli.parts.common import (
    OUTPUT,
    F,
    apply_options,
    asked_db_option,
    config_option,
    device_option,
    even_features,
    family_names,
    force_option,
    json_option,
    parse_config,
    target_option,
    to_json,
)
from sparsegen.cli.parts.matrix_options import MatrixOptions, matrix_options
from sparsegen.cli.parts.problems import ProblemOptions, problem_options
from sparsegen.cli.parts.streams import visible
from sparsegen.dispatch.choice import choose
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.render import render
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_file, publish_text, refuse_existing, reported
from sparsegen.tuning_db.layers import open_layers
from sparsegen.tuning_db.records import Workload

DENSITY = 0.1  # density of a matrix that sizes stand for; it matters only without a config


@dataclass(frozen=True, slots=True)
class Choice:
    """A variant and who chose it."""

    family: AnyFamily
    config: Any
    reason: str


FORMS = {
    "ptx": "PTX instead of CUDA (needs nvcc, no GPU).",
    "sass": "Machine code instead of CUDA (needs nvcc, no GPU).",
    "resources": "Registers, spills and shared memory (needs nvcc, no GPU).",
    "standalone": "A program for nvcc alone, which packs, launches, checks its result and takes times (needs no GPU).",
}


def _form_options(function: F) -> F:
    """``form``: str | None, one of `FORMS`."""

    @functools.wraps(function)
    def command(*args: object, **others: Any) -> Any:
        forms = [form for form in FORMS if others.pop(form)]
        if len(forms) > 1:
            raise click.UsageError(f"give only one of {' and '.join(f'--{form}' for form in forms)}")
        return function(*args, form=next(iter(forms), None), **others)

    options = (click.option(f"--{form}", is_flag=True, help=text) for form, text in FORMS.items())
    return apply_options(options, cast(F, command))


@click.command()
@matrix_options
@problem_options(without_matrix=True)
@click.option(
    "--family", "family_name", metavar="NAME", shell_complete=family_names, help="See `sparsegen families`."
)
@config_option
@device_option
@asked_db_option
@_form_options
@target_option("The variant")
@click.option(*OUTPUT, type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@force_option
@json_option
def command(
    matrix_file: MatrixOptions,
    wanted: ProblemOptions,
    family_name: str | None,
    config: tuple[str, ...],
    device: str | None,
    db: str | None,
    form: str | None,
    target: str | None,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Print the CUDA source of a variant.

    With neither --family nor --config it is the variant that would run for this matrix (see `sparsegen
    lookup`). With sizes instead of a matrix, --density is that of the matrix (default 0.1). With --family, the
    family's heuristic config; --config changes tunables of it, any valid one renders, and no GPU is
    needed.

    With --standalone it is a whole program (docs/ship.md). Of some families the packed matrix is written beside it.
    """
    if output is not None:
        refuse_existing(output, force=force)
    if target is not None and device is not None:
        raise click.UsageError("--for names a device that is not here: give no --device")
    if matrix_file.transpose and matrix_file.file is None:
        raise click.UsageError("--transpose needs --matrix; without one exchange its sizes")
    if config and family_name is None:
        raise click.UsageError("--config needs --family")
    if matrix_file.file is None and wanted.problem_type.has_pattern:
        density, wanted = wanted.values["density"], wanted.without("density")
        problem = wanted.problem_without_matrix()
        features = even_features(*problem.matrix_shape, DENSITY if density is None else density.share)
        workload = Workload(problem, "", features)  # without a fingerprint, nothing measured is its own
        matrix = None
    else:
        matrix, problem = wanted.workload(matrix_file.reader)
        workload = Workload.of(problem, matrix)
    where = _device(device, target)
    if family_name is not None:
        choice = _named(family_name, parse_config(config), workload, where)
    else:
        choice = _dispatched(workload, where, db)
    choice.family.require_valid(problem, choice.config, where)
    if form == "standalone":
        if matrix is None:
            from sparsegen.matrix.generators import random_uniform

            matrix = random_uniform(*problem.matrix_shape, workload.features.density, seed=0)
        _program(choice, problem, matrix, where, output, force=force, as_json=as_json)
        return
    source = render(choice.family, problem, choice.config)
    text, facts = _inspect(form, choice.family, source, where)
    if output is not None:
        with reported(output):
            publish_text(output, text)
    if as_json:
        click.echo(to_json(_chosen(choice, problem, where) | facts))
    elif output is None:
        click.echo(text, nl=False)
    else:
        click.echo(visible(f"{output}: {len(text.splitlines())} lines"))


def _chosen(choice: Choice, problem: Problem, device: Device) -> Json:
    """JSON values of the variant whose source is printed."""
    return {
        "family": choice.family.name,
        "config": choice.config.to_dict(),
        "chosen_by": choice.reason,
        "problem": problem.named(),
        "device": device.key,
    }


def _device(device: str | None, target: str | None) -> Device:
    """The device that a variant is for."""
    if target is not None:
        from sparsegen.tuning.prediction.targets import find_target

        return find_target(target).device
    return backends.remembered_device(device) or backends.find_device(device)


def _program(
    choice: Choice,
    problem: Problem,
    matrix: CsrMatrix,
    device: Device,
    output: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Print or write a standalone source, and what it reads beside it."""
    from sparsegen.render.standalone import standalone

    if device.backend != "cuda":
        raise click.UsageError("--standalone is a program for a GPU: name one that is not here with --for")
    if output is not None and output.suffix != ".cu":
        raise click.UsageError("--standalone writes CUDA: give --output a name that ends in .cu")
    name = "kernel" if output is None else output.stem
    program = standalone(choice.family, problem, choice.config, matrix, device, name=name)
    packed = None
    if program.packed is not None:
        if output is None:
            raise click.UsageError(
                f"{choice.family.name} packs in Python, and its program reads the packed matrix from a file beside it: "
                "say where with --output"
            )
        packed = output.with_name(program.packed_name)
        refuse_existing(packed, force=force)
        with reported(packed), publish_file(packed) as file:
            file.write(program.packed)
    if output is not None:
        with reported(output):
            publish_text(output, program.source)
    if as_json:
        data = {
            "command": program.command,
            "packed": None if packed is None else str(packed),
            "source": program.source,
        }
        click.echo(to_json(_chosen(choice, problem, device) | data))
    elif output is None:
        click.echo(program.source, nl=False)
    else:
        beside = f", and {packed}" if packed else ""
        click.echo(visible(f"{output}: {len(program.source.splitlines())} lines{beside}"))
        click.echo(visible(f"  {program.command}"))


def _named(name: str, config: dict[str, str], workload: Workload, device: Device) -> Choice:
    """The family's heuristic config, changed where the user says so."""
    family = kernels.require_family(name, workload.problem)
    heuristic = family.heuristic(workload.problem, workload.features, device).to_dict()
    return Choice(
        family, family.config(**{**heuristic, **config}), "the command line" if config else "the family"
    )


def _dispatched(workload: Workload, device: Device, db: str | None) -> Choice:
    """Returns dispatch's choice."""
    with open_layers(Settings.from_environment(), db) as layers:
        chosen = choose(workload, device, layers)
    return Choice(chosen.family, chosen.config, f"dispatch ({chosen.how}): {chosen.why}")


def _inspect(form: str | None, family: AnyFamily, source: str, device: Device) -> tuple[str, Json]:
    """The text to print and its JSON fields."""
    if form is None:
        return source, {"source": source}
    toolchain = CudaToolchain(device.compute_capability)
    if form == "ptx":
        text = inspection.ptx(toolchain, source)
        return text, {"architecture": toolchain.architecture, "ptx": text}
    compiled = toolchain.compile(family.name, family.entry, source)
    if form == "sass":
        text = inspection.sass(compiled.binary, Settings.from_environment())
        return text, {"architecture": toolchain.architecture, "sass": text}
    resources = {
        "architecture": toolchain.architecture,
        "registers": compiled.registers,
        "spill_bytes": compiled.spill_bytes,
        "static_shared_bytes": compiled.static_shared_bytes,
    }
    lines = (f"{name.replace('_', ' ')}: {value}\n" for name, value in resources.items())
    return "".join(lines), resources
