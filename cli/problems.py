"""Problems from options, and options from problems."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar, cast

import click

from sparsegen.cli.common import EnumChoice
from sparsegen.operators import (
    OPERATORS,
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmEpilogue,
    SpmmProblem,
    operator_named,
)

F = TypeVar("F", bound=Callable[..., Any])
DENSE_SIZE = 128  # of a dense size that no option gives


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """What `problem_options` were given; None for an option that was not.

    Attributes:
        operator: None only where `problem_options` were made for any.
    """

    operator: str | None
    n: int | None
    k: int | None
    dtype: DType
    layout: Layout | None
    epilogue: str | None
    batch: int
    item_values: ItemValues | None

    @property
    def problem_type(self) -> type[Problem]:
        if self.operator is None:
            raise click.UsageError("--operator says what is computed")
        return operator_named(self.operator)

    def fields(self) -> dict[str, Any]:
        """The problem's fields but for the matrix's sizes, where there is one; dense sizes filled in."""
        names = ("n", "k", "dtype", "layout", "epilogue", "batch", "item_values")
        given = {name: getattr(self, name) for name in names}
        for name in self.problem_type.dense_sizes:
            given[name] = DENSE_SIZE if given[name] is None else given[name]
        return given

    def keywords(self) -> dict[str, Any]:
        """What `sparsegen.api`'s functions take."""
        return {"operator": self.problem_type.operator, **self.fields()}

    def problem(self, shape: tuple[int, int]) -> Problem:
        """The problem for a matrix of this shape.

        Raises:
            ConfigError: an option that the operator does not take, or a value that it does not have.
        """
        return self.problem_type.of(shape, **self.fields())

    def problem_without_matrix(self, m: int | None, default: int | None = None) -> Problem:
        """The problem whose matrix's shape is given by options too.

        Args:
            m: the matrix's rows, which is no option of `problem_options`.
            default: of a size of the matrix that is not given; None if all must be.

        Raises:
            click.UsageError: a size is missing.
            ConfigError: see `problem`.
        """
        given = {"m": m, "n": self.n, "k": self.k}
        rows, columns = (
            default if given[name] is None else given[name] for name in self.problem_type.matrix_sizes
        )
        if rows is None or columns is None:
            first, second = map(option_of, self.problem_type.matrix_sizes)
            raise click.UsageError(f"give either --matrix, or {first} and {second}")
        dense = {
            name: value for name, value in self.fields().items() if name not in self.problem_type.matrix_sizes
        }
        return self.problem_type.of((rows, columns), **dense)


def problem_options(*, any_operator: bool = False) -> Callable[[F], F]:
    """``wanted``: `ProblemOptions`; with ``any_operator`` the operator may be left open."""
    default = None if any_operator else SpmmProblem.operator
    return functools.partial(_collected, default)


def _collected(default: str | None, function: F) -> F:
    """The command with the options, which it receives as one value."""

    @functools.wraps(function)
    def command(
        *args: Any,
        operator: str | None,
        n: int | None,
        k: int | None,
        dtype: DType,
        layout: Layout | None,
        epilogue: str | None,
        batch: int,
        item_values: ItemValues | None,
        **others: Any,
    ) -> Any:
        wanted = ProblemOptions(operator, n, k, dtype, layout, epilogue, batch, item_values)
        return function(*args, wanted=wanted, **others)

    options = (
        click.option(
            "--operator",
            type=click.Choice(list(OPERATORS)),
            default=default,
            show_default=default is not None,
            help="spmm: C = A · B. sddmm: A · Bᵀ at the matrix's nonzeros. sparse_softmax: of its rows; "
            "sparse_softmax_backward: its gradient. sparse_attention: softmax(s · Q · Kᵀ there) · V.",
        ),
        click.option(
            "-n", "n", type=click.IntRange(min=1), help=f"Columns of B and C (spmm); default {DENSE_SIZE}."
        ),
        click.option(
            "-k",
            "--k",
            "--width",
            "k",
            type=click.IntRange(min=0),
            help=f"Columns of A and B (sddmm), of Q, K and V (sparse_attention); default {DENSE_SIZE}.",
        ),
        click.option(
            "--dtype",
            type=EnumChoice(DType),
            default=DType.FLOAT32.value,
            show_default=True,
            help="Element type of matrix, operands and result; sums are float32.",
        ),
        click.option(
            "--layout", type=EnumChoice(Layout), help=f"Memory order of B and C (spmm); default {Layout.ROW}."
        ),
        click.option(
            "--epilogue",
            type=click.Choice(words(Epilogue, SddmmEpilogue)),
            help="What is done to the result before it is stored: of spmm "
            f"{', '.join(Epilogue)}; of sddmm {', '.join(SddmmEpilogue)}; default {Epilogue.NONE}.",
        ),
        click.option(
            "--batch",
            "--heads",
            "batch",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="Items on the same pattern that one launch computes, such as heads of attention.",
        ),
        click.option(
            "--item-values",
            type=EnumChoice(ItemValues),
            help="Of a batch of spmm: all items have the matrix's values (shared), or each its own; default "
            f"{ItemValues.SHARED}.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return cast(F, command)


def words(*enums: type[StrEnum]) -> list[str]:
    """The values of several enumerations, each once."""
    return list(dict.fromkeys(member.value for enum in enums for member in enum))


def option_of(size: str) -> str:
    """How a size is given on a command line."""
    return "--m" if size == "m" else f"-{size}"


def command_line(problem: Problem) -> str:
    """The options that make this problem of its matrix; what is a default is left out, but for dense sizes."""
    operator = "" if isinstance(problem, SpmmProblem) else f" --operator {problem.operator}"
    dense = "".join(f" {option_of(name)} {problem.sizes[name]}" for name in problem.dense_sizes)
    batch = f" --batch {problem.batch}" if problem.batch > 1 else ""
    defaults = {field.name: field.default for field in fields(cast(Any, problem))}
    traits = "".join(
        f" --{name.replace('_', '-')} {shlex.quote(value)}"
        for name, value in problem.traits.items()
        if value != defaults[name]
    )
    return operator + dense + traits + batch
