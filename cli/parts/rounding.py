"""The options that round weights to codes and scales: ``--values``, ``--group`` and ``--asymmetric``."""

from __future__ import annotations

from collections.abc import Callable

import click

from sparsegen.cli.parts.common import EnumChoice, F, apply_options
from sparsegen.operators import Quantization, ScaleGroup, ValueType


def rounding_options(help_text: str) -> Callable[[F], F]:
    """Adds the options ``values``, ``group`` and ``asymmetric``.

    Args:
        help_text: what ``--values`` does.
    """
    options = (
        click.option("--values", type=EnumChoice(ValueType), help=help_text),
        click.option(
            "--group", type=EnumChoice(ScaleGroup), help="Columns of a row that share a scale; default row."
        ),
        click.option(
            "--asymmetric", is_flag=True, help="With --values of integers: a zero point beside each scale."
        ),
    )
    return lambda function: apply_options(options, function)


def rounding_of(values: ValueType | None, group: ScaleGroup | None, asymmetric: bool) -> Quantization | None:
    """Returns what the options say; None where weights are not rounded.

    Raises:
        click.UsageError: a group or zero points without values.
        ConfigError: zero points of floating-point codes.
    """
    if values is None and group is not None:
        raise click.UsageError("--group is for --values")
    if values is None and asymmetric:
        raise click.UsageError("--asymmetric is for --values")
    return Quantization.parse(values, group, not asymmetric)
