"""``sparsegen mask``: write a mask of sparse attention to a file that the other commands take as ``--matrix``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import scipy.sparse

from sparsegen import masks
from sparsegen.cli.parts.common import OUTPUT, FiniteRange, apply_options, emit, force_option, json_option
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.pruning.files.output import new_file

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def command() -> None:
    """Write a mask of sparse attention: a pattern of queries by keys, as SciPy's .npz."""


def mask_options(function: F) -> F:
    """Adds the options of every kind of mask: ``length``, ``causal``, ``output``, ``force``, ``as_json``."""
    options = (
        click.option("--length", required=True, type=click.IntRange(min=1), help="Of the sequence."),
        click.option(
            "--causal/--bidirectional", default=True, show_default=True, help="Whether only the past is seen."
        ),
        click.option(*OUTPUT, required=True, type=click.Path(path_type=Path), help="A .npz file to write."),
        force_option,
        json_option,
    )
    return apply_options(options, function)


def seed_option(function: F) -> F:
    """``seed``: int."""
    return click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))(function)


@command.command()
@click.option(
    "--width", default=256, show_default=True, type=click.IntRange(min=1), help="Of the dense band."
)
@click.option("--sparsity", default=0.95, show_default=True, type=FiniteRange(0, 1), help="Outside the band.")
@seed_option
@mask_options
def band(width: int, sparsity: float, seed: int, length: int, causal: bool, **written: Any) -> None:
    """A dense band, and nonzeros outside it with a probability inverse to the distance (Gale et al., SC 2020)."""
    _write(masks.band(length, width, sparsity, causal=causal, seed=seed), **written)


@command.command()
@click.option("--window", required=True, type=click.IntRange(min=1), help="Distances below it are seen.")
@click.option(
    "--sinks", default=0, show_default=True, type=click.IntRange(min=0), help="First tokens, seen by all."
)
@mask_options
def window(window: int, sinks: int, length: int, causal: bool, **written: Any) -> None:
    """A sliding window with attention sinks (Xiao et al., ICLR 2024)."""
    _write(masks.sliding_window(length, window, sinks, causal=causal), **written)


@command.command()
@click.option(
    "--stride", required=True, type=click.IntRange(min=1), help="Distances below it, and its multiples."
)
@mask_options
def strided(stride: int, length: int, causal: bool, **written: Any) -> None:
    """A window and every stride-th place (Child et al., 2019)."""
    _write(masks.strided(length, stride, causal=causal), **written)


@command.command()
@click.option(
    "--block", default=64, show_default=True, type=click.IntRange(min=1), help="The side of a block."
)
@click.option(
    "--neighbours",
    default=1,
    show_default=True,
    type=click.IntRange(min=0),
    help="Blocks on each side of the diagonal's.",
)
@click.option(
    "--extra",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Random blocks in each row of blocks.",
)
@seed_option
@mask_options
def blocks(
    block: int, neighbours: int, extra: int, seed: int, length: int, causal: bool, **written: Any
) -> None:
    """Dense blocks near the diagonal, and some at random (Zaheer et al., NeurIPS 2020)."""
    _write(masks.blocks(length, block, neighbours, extra, causal=causal, seed=seed), **written)


def _write(mask: CsrMatrix, output: Path, force: bool, as_json: bool) -> None:
    if output.suffix.lower() != ".npz":
        raise click.BadParameter(f"{output} does not end in .npz", param_hint="--output")
    with new_file(output, force=force) as file:
        scipy.sparse.save_npz(file, mask.to_scipy())
    features = Features.of(mask)
    rows, columns = mask.shape
    data = {
        "output": str(output),
        "shape": [rows, columns],
        "nonzeros": mask.nnz,
        "density": mask.nnz / (rows * columns),
        "row_mean": features.row_mean,
        "row_max": features.row_max,
        "fingerprint": mask.fingerprint(),
    }
    emit(
        as_json,
        data,
        f"{output}: {rows:,} × {columns:,}, {mask.nnz:,} nonzeros ({data['density']:.2%})\n"
        f"rows of {features.row_mean:,.1f} on average, the longest of {features.row_max:,.0f}",
    )
