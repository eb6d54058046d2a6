"""Rounding of weights to codes and scales: the options ``--values``, ``--group``, ``--asymmetric``, and the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from sparsegen.cli.parts.common import EnumChoice, F, apply_options
from sparsegen.errors import MatrixError, PruningError, one_line
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Quantization, ScaleGroup, ValueType
from sparsegen.system.numpy_types import Array


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


class Encoder:
    """Rounds layers to codes and scales for their files.

    Attributes:
        errors: error of the norm of each layer that was rounded, by name.
    """

    def __init__(self, rounding: Quantization, dtype: DType, calibration: Path | None) -> None:
        """
        Args:
            dtype: the products'; scales are float16 unless that is another 16-bit type.
            calibration: .npz file with inputs of each layer, samples × columns, under its name; None: round to nearest.

        Raises:
            MatrixError: the file cannot be read.
        """
        self.errors: dict[str, float] = {}
        self._rounding = rounding
        self._dtype = dtype if dtype.itemsize == 2 else DType.FLOAT16
        self._inputs: Any = None if calibration is None else _opened(calibration)
        self._source = calibration

    def __call__(self, name: str, matrix: CsrMatrix) -> dict[str, Array]:
        """The arrays of a layer's file.

        Raises:
            PruningError: the calibration has no inputs of this layer.
            As `sparsegen.quantize`.
        """
        given = None
        if self._inputs is not None:
            if name not in self._inputs:
                some = ", ".join(list(self._inputs)[:5]) or "none"
                raise PruningError(f"{self._source} has no inputs of {name}; there are {some}")
            given = self._inputs[name]
        made = self._rounding.of(matrix, self._dtype, given)
        self.errors[name] = made.rounding_error(matrix)
        return made.arrays()


def _opened(path: Path) -> Any:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise MatrixError(f"cannot be read: {one_line(str(error))}", source=path) from error
    if not isinstance(found, np.lib.npyio.NpzFile):
        raise MatrixError("expected an .npz file with inputs under the names of layers", source=path)
    return found
