"""The options of commands that take a sparse matrix from a file: one value, read when it is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

from sparsegen.cli.parts.common import F, apply_options, memory_limit_option
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.load import load_matrix


@dataclass(frozen=True, slots=True)
class MatrixOptions:
    """Source of a sparse matrix.

    Attributes:
        file: None if none was given.
        tensor: name of the array in a file that holds several.
        seed: seed of the values that .smtx files lack.
        memory_limit: bytes that reading may take.
    """

    file: Path | None
    tensor: str | None = None
    seed: int = 0
    drop_zeros: bool = False
    memory_limit: int | None = None
    transpose: bool = False

    @property
    def reader(self) -> Callable[[], CsrMatrix] | None:
        """Function that reads the matrix, once however often it is called; None if no file was given."""
        file = self.file
        if file is None:
            return None

        @functools.cache
        def read() -> CsrMatrix:
            return load_matrix(
                file,
                tensor=self.tensor,
                seed=self.seed,
                drop_zeros=self.drop_zeros,
                memory_limit=self.memory_limit,
                transpose=self.transpose,
            )

        return read


def drop_zeros_option(function: F) -> F:
    """``drop_zeros``: bool."""
    return click.option("--drop-zeros", is_flag=True, help="Leave out zeros that the file stores.")(function)


def matrix_options(function: F) -> F:
    """``matrix_file``: `MatrixOptions`."""

    @functools.wraps(function)
    def command(
        *args: object,
        matrix: Path | None,
        tensor: str | None,
        seed: int,
        drop_zeros: bool,
        memory_limit: int | None,
        transpose: bool,
        **others: object,
    ) -> Any:
        given = MatrixOptions(matrix, tensor, seed, drop_zeros, memory_limit, transpose)
        return function(*args, matrix_file=given, **others)

    options = (
        click.option(
            "--matrix",
            type=click.Path(path_type=Path),
            help="Sparse matrix: .npz, .npy, .mtx[.gz], .smtx[.gz] or .safetensors.",
        ),
        click.option("--tensor", help="Which array of a file that holds several."),
        click.option(
            "--seed",
            default=0,
            show_default=True,
            type=click.IntRange(min=0),
            help="Of the values that .smtx files lack.",
        ),
        drop_zeros_option,
        memory_limit_option,
        click.option("--transpose", is_flag=True, help="Take the matrix's transpose."),
    )
    return apply_options(options, cast(F, command))
