"""``sparsegen ship``: a converted model as a folder that plain PyTorch runs, without sparsegen."""

from __future__ import annotations

from pathlib import Path

import click

from sparsegen import backends
from sparsegen.cli.parts.common import (
    OUTPUT,
    Copied,
    Listing,
    device_option,
    emit,
    json_option,
    note_emulator,
    word_option,
)
from sparsegen.cli.parts.torch_models import model_and_inputs
from sparsegen.plan.shipping.program import ProgramKind


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--example-inputs",
    required=True,
    metavar="FILE",
    help="Inputs to call the model with: a .npz, .npy or .pt file, or module:function. The program takes inputs of "
    "their shapes alone.",
)
@click.option(
    *OUTPUT,
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write, which must not be there yet.",
)
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="GPU",
    help="Kernels for another GPU too, such as sm_80 or h100; may be repeated.",
)
@word_option(
    "--program",
    default=ProgramKind.COMPILED,
    help="compiled: by AOTInductor, for this device. exported: as torch.export wrote it.",
)
@device_option
@json_option
def command(
    model: Path,
    example_inputs: str,
    output: Path,
    archs: tuple[str, ...],
    program: ProgramKind,
    device: str | None,
    as_json: bool,
) -> None:
    """Write a converted model for inference as a program that plain PyTorch runs, without sparsegen.

    MODEL is a .pt2 file of a model that `sparsegen.integrations.torch.convert` changed, or module:function that makes
    one. The folder gets the program with the packed weights and the library of its kernels; docs/shipped-models.md
    says how to load it.
    """
    where = backends.find_device(device)
    loaded, inputs = model_and_inputs(model, example_inputs, where)
    from sparsegen.integrations.torch.shipping.ship import ship

    found = ship(loaded, inputs, output, archs=archs, program=program)
    table = Listing("problem", "family", "packed")
    for launch in found.launches:
        table.add_row(str(launch.problem), launch.family, f"{launch.packed.nbytes} bytes")
    data = {"folder": str(output), **found.to_dict()}
    emit(as_json, data, table, str(found), Copied("To load it:", *found.how_to_load.splitlines()))
    note_emulator([where], as_json=as_json)
