"""Problems from options, as the fields of all operators' problems declare them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar, cast

import click

from sparsegen.cli.parts.common import EnumChoice
from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.formats import as_mask
from sparsegen.operators import (
    DEFAULT_OPERATOR,
    OPERATORS,
    Field,
    Parameter,
    Problem,
    fields_of,
    operator_named,
)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """Values of the options that `problem_options` adds.

    Attributes:
        operator: None only if `problem_options` were made for any.
        values: values of fields by name; None for one that was not given.
    """

    operator: str | None
    values: Mapping[str, Any]

    @property
    def problem_type(self) -> type[Problem]:
        if self.operator is None:
            raise click.UsageError("--operator says what is computed")
        return operator_named(self.operator)

    def fields(self) -> dict[str, Any]:
        """The fields that were given, and the sizes that have a usual value."""
        usual = {
            name: field.usual
            for name, field in fields_of(self.problem_type).items()
            if field.usual is not None
        }
        return usual | {name: value for name, value in self.values.items() if value is not None}

    def without(self, name: str) -> ProblemOptions:
        """The same without a value that is no field of this operator, and that the command takes itself."""
        return replace(self, values={**self.values, name: None})

    def workload(self, load: Callable[[], CsrMatrix] | None) -> tuple[CsrMatrix, Problem]:
        """The matrix, or what takes its place, and the problem.

        Args:
            load: reads it; None where none is given, as for operators whose mask comes with every call.

        Raises:
            click.UsageError: there is no matrix and should be one, or the other way round, or a size is missing.
            ConfigError: see `problem`.
            MatrixError: an additive mask, of an operator that heeds no values.
        """
        kind = self.problem_type
        if not kind.has_pattern:
            if load is not None:
                raise click.UsageError(f"{kind.operator} takes its mask with every call: drop --matrix")
            problem = self.problem_without_matrix()
            return problem.without_pattern, problem
        if load is None:
            raise click.UsageError("Missing option '--matrix'.")
        if twice := self.sizes_of_matrix():
            raise click.UsageError(f"give either --matrix, or {' and '.join(twice)}")
        found = load()
        problem = self.problem(found.shape)
        return found if problem.heeds_values else as_mask(found), problem

    def sizes_of_matrix(self) -> list[str]:
        """The flags that give the matrix's sizes on a command line, if any of them was given."""
        kind = self.problem_type
        is_given = any(self.values.get(name) is not None for name in kind.matrix_sizes)
        return [fields_of(kind)[name].flags[0] for name in kind.matrix_sizes] if is_given else []

    def problem(self, shape: tuple[int, int]) -> Problem:
        """The problem for a matrix of this shape.

        Raises:
            ConfigError: an option that the operator does not take, or a value that it does not have.
        """
        return self.problem_type.of(shape, **self.fields())

    def problem_without_matrix(self, default: int | None = None) -> Problem:
        """The problem whose matrix's shape is given by options too.

        Args:
            default: default of a size of the matrix that is not given; None if all must be.

        Raises:
            click.UsageError: a size is missing.
            ConfigError: see `problem`.
        """
        kind, given = self.problem_type, self.fields()
        rows, columns = (given.pop(name, default) for name in kind.matrix_sizes)
        if rows is None or columns is None:
            first, second = (fields_of(kind)[name].flags[0] for name in kind.matrix_sizes)
            either = "give either --matrix, or" if kind.has_pattern else f"{kind.operator} needs"
            raise click.UsageError(f"{either} {first} and {second}")
        return kind.of((rows, columns), **given)


def problem_options(*, any_operator: bool = False, without_matrix: bool = False) -> Callable[[F], F]:
    """``wanted``: `ProblemOptions`.

    Args:
        any_operator: the operator may be left open.
        without_matrix: the sizes of the matrix are options too.
    """
    return functools.partial(_collected, None if any_operator else DEFAULT_OPERATOR, without_matrix)


def _collected(default: str | None, without_matrix: bool, function: F) -> F:
    """The command with the options, which it receives as one value."""
    merged = _fields(without_matrix)

    @functools.wraps(function)
    def command(*args: object, operator: str | None, **others: object) -> Any:
        wanted = ProblemOptions(operator, {name: others.pop(name) for name in merged})
        if operator is not None:
            _require_in_range(wanted)
        return function(*args, wanted=wanted, **others)

    return cast(F, _decorated(command, default, merged, repeatable=False))


def repeatable_problem_options(function: F) -> F:
    """``combinations``: `ProblemOptions` for each combination of the options' values; all may be repeated."""
    merged = _fields(without_matrix=False)

    @functools.wraps(function)
    def command(*args: object, operator: str, **others: Any) -> Any:
        given = [dict.fromkeys(others.pop(name)) or (None,) for name in merged]
        combinations = [
            ProblemOptions(operator, dict(zip(merged, values, strict=True)))
            for values in itertools.product(*given)
        ]
        for wanted in combinations:
            _require_in_range(wanted)
        return function(*args, combinations=combinations, **others)

    return cast(F, _decorated(command, DEFAULT_OPERATOR, merged, repeatable=True))


def _decorated(command: Any, operator: str | None, merged: Mapping[str, _Merged], *, repeatable: bool) -> Any:
    """Adds an option for the operator, and one for each of the fields."""
    for field in reversed(list(merged.values())):
        command = click.option(
            *field.flags,
            field.name,
            cls=_FieldOption,
            merged=field,
            type=field.type,
            help=field.help,
            multiple=repeatable,
        )(command)
    return _operator_option(operator)(command)


def _require_in_range(wanted: ProblemOptions) -> None:
    kind = wanted.problem_type
    for name, field in fields_of(kind).items():
        value = wanted.values.get(name)
        may_be_empty = kind.has_pattern and name in kind.matrix_sizes
        if field.is_size and not may_be_empty and value is not None and value < 1:
            raise click.BadParameter(f"{value} is not in the range x>=1.", param_hint=f"'{field.flags[0]}'")


def _operator_option(default: str | None) -> Callable[[F], F]:
    return click.option(
        "--operator",
        cls=_OperatorOption,
        type=click.Choice(list(OPERATORS)),
        default=default,
        show_default=default is not None,
        is_eager=True,  # so that a --help behind it knows
        help="What is computed; `--operator NAME --help` shows what that one takes.",
    )


def _operator_of_help(context: click.Context) -> str | None:
    """The operator that help is about: the one named before --help, else the default; None where any is meant."""
    if "operator" in context.params:
        return cast("str | None", context.params["operator"])
    option = next(param for param in context.command.params if param.name == "operator")
    return cast("str | None", option.get_default(context))


class _OperatorOption(click.Option):
    """The option that names the operator; its help describes the operator at hand."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Flags and help."""
        record, operator = super().get_help_record(ctx), _operator_of_help(ctx)
        if record is None or operator is None:
            return record
        return record[0], f"{operator}: {OPERATORS[operator].summary}. {record[1]}"


class _FieldOption(click.Option):
    """One for the fields of one name, whose help is about those of the operator at hand."""

    def __init__(self, *names: Any, merged: _Merged, **options: Any) -> None:
        super().__init__(*names, **options)
        self._merged = merged

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Flags and help; None where the operator has no such field."""
        operator = _operator_of_help(ctx)
        if operator is None:
            return super().get_help_record(ctx)
        field = self._merged.fields.get(operator)
        if field is None:
            return None
        alone = _Merged(self.name or "", {operator: field})
        shown = click.Option([*alone.flags, alone.name], type=alone.type, help=alone.help_of_one)
        return shown.get_help_record(ctx)


class FieldValue(click.ParamType[Any]):
    """A value of a problem's field."""

    def __init__(self, field: Field) -> None:
        self.name, self._field = field.name, field

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._field.parsed(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


# --- one option for the fields of one name that several operators have -------------------------------------


@dataclass(frozen=True, slots=True)
class _Merged:
    """The fields of one name, by the operators that have them."""

    name: str
    fields: Mapping[str, Field]

    @property
    def flags(self) -> list[str]:
        return list(dict.fromkeys(flag for field in self.fields.values() for flag in field.flags))

    @property
    def type(self) -> click.ParamType[Any]:
        kinds = list(dict.fromkeys(field.kind for field in self.fields.values()))
        if int in kinds:
            may_be_empty = any(
                OPERATORS[name].has_pattern and self.name in OPERATORS[name].matrix_sizes
                for name in self.fields
            )
            return click.IntRange(min=0 if may_be_empty else 1)
        if any(issubclass(kind, Parameter) for kind in kinds):
            return FieldValue(next(iter(self.fields.values())))
        enums = cast("list[type[StrEnum]]", kinds)
        if len(enums) == 1:
            return EnumChoice(enums[0])
        return click.Choice(list(dict.fromkeys(word.value for enum in enums for word in enum)))

    @property
    def help_of_one(self) -> str:
        """Help of one operator's field, with its default."""
        ((_, field),) = self.fields.items()
        default = field.usual if field.default is None else field.default
        known = "" if default is None else f"; default {default}"
        return f"{field.doc[0].upper()}{field.doc[1:]}{known}."

    @property
    def help(self) -> str:
        """Help of all operators' fields: their operators, their words if these differ, and the default."""
        docs: dict[str, list[str]] = {}
        for operator, field in self.fields.items():
            docs.setdefault(field.doc, []).append(operator)
        everywhere = len(self.fields) == len(OPERATORS)
        parts = [
            doc if everywhere and len(docs) == 1 else f"{doc} ({', '.join(operators)})"
            for doc, operators in docs.items()
        ]
        if len({field.kind for field in self.fields.values()}) > 1:
            words = (
                f"of {name} {', '.join(cast('type[StrEnum]', f.kind))}" for name, f in self.fields.items()
            )
            parts.append("; ".join(words))
        defaults = (f.usual if f.default is None else f.default for f in self.fields.values())
        known = list(dict.fromkeys(str(default) for default in defaults if default is not None))
        if known:
            parts.append(f"default {' or '.join(known)}")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."


def _fields(without_matrix: bool) -> dict[str, _Merged]:
    """The fields that options give: all but the sizes of matrices, unless none is given."""
    by_name: dict[str, dict[str, Field]] = {}
    for operator, kind in OPERATORS.items():
        for name, field in fields_of(kind).items():
            if without_matrix or not kind.has_pattern or name not in kind.matrix_sizes:
                by_name.setdefault(name, {})[operator] = field
    return {name: _Merged(name, fields) for name, fields in by_name.items()}
