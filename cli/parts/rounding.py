"""The options that round weights to codes and scales: ``--values`` and ``--group``."""

from __future__ import annotations

from collections.abc import Callable

import click

from sparsegen.cli.parts.common import EnumChoice, F, apply_options
from sparsegen.operators import Quantization, ScaleGroup, ValueType


def rounding_options(help_text: str) -> Callable[[F], F]:
    """Adds the options ``values`` and ``group``.

    Args:
        help_text: what ``--values`` does.
    """
    options = (
        click.option("--values", type=EnumChoice(ValueType), help=help_text),
        click.option(
            "--group", type=EnumChoice(ScaleGroup), help="Columns of a row that share a scale; default row."
        ),
    )
    return lambda function: apply_options(options, function)


def rounding_of(values: ValueType | None, group: ScaleGroup | None) -> Quantization | None:
    """Returns what the options say; None where weights are not rounded.

    Raises:
        click.UsageError: a group without values.
    """
    if values is None and group is not None:
        raise click.UsageError("--group is for --values")
    return Quantization.parse(values, group)
