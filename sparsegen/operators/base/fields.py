"""Fields of problems: each declares what it is, and what command lines, files and dispatch need to know of it."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, cast, get_type_hints

from sparsegen import arguments
from sparsegen.errors import ConfigError, SparsegenError
from sparsegen.operators.base.dtype import DType

E = TypeVar("E", bound=StrEnum)


class NoValueError(ConfigError, ValueError):
    """Value is none of a parameter's. The message is the end of a sentence that names the argument."""


class Parameter(ABC):
    """A value of a problem that is neither a size nor a trait: times with another one still compare.

    Subclasses are immutable and equal where their `json` is.
    """

    __slots__ = ()

    @classmethod
    @abstractmethod
    def parse(cls, value: object) -> Self:
        """The value that an object of this class, a number or a word stands for.

        Raises:
            ValueError: it is none; the message goes on from "x is".
        """

    @classmethod
    def named(cls, value: object, name: str, error: type[SparsegenError] = ConfigError) -> Self:
        """Parses the value of an argument ``name``; raises ``error`` if it is no value of the class."""
        try:
            return cls.parse(value)
        except ValueError as why:
            raise error(f"{name} = {value!r} is {why}") from None

    @property
    @abstractmethod
    def json(self) -> float | str:
        """Returns the value as JSON; `parse` reads it back."""

    @property
    def octaves(self) -> tuple[float, ...]:
        """Coordinates among other values, to find similar workloads; empty if the features hold them already."""
        return ()


class Field(NamedTuple):
    """A field of an operator's problems.

    Attributes:
        kind: ``int`` for a size, an enumeration for a trait, a `Parameter` class for what is neither.
        doc: description, which begins with a small letter and ends without a stop.
        flags: flags of a command line, the preferred one first.
        default: None where it must be given.
        usual: a command line's default for a size that has none itself; None if it must be given.
        near: true if it changes little, so that times with another value still compare.
        unsaid: a trait that texts leave out where it has its default, as nearly all problems do.
        of_batch: true if it is a property of a batch's elements: one element alone has its default.
    """

    name: str
    kind: type[int] | type[StrEnum] | type[Parameter]
    doc: str
    flags: tuple[str, ...]
    default: int | StrEnum | Parameter | None
    usual: int | None = None
    near: bool = False
    unsaid: bool = False
    of_batch: bool = False

    @property
    def is_size(self) -> bool:
        return self.kind is int

    @property
    def is_trait(self) -> bool:
        return issubclass(self.kind, StrEnum)

    def from_json(self, value: Any) -> int | StrEnum | Parameter:
        """The value that was written as JSON.

        Raises:
            ValueError: no size or word.
            ConfigError: no value of the parameter.
        """
        kind = self.kind
        return self.parsed(value) if issubclass(kind, Parameter) else kind(value)

    def parsed(self, value: Any) -> int | StrEnum | Parameter:
        """The value of this field that a number or a word stands for.

        Raises:
            ConfigError: it is none, or a word that the enumeration does not have; the message lists those there are.
        """
        if self.is_size:
            return arguments.whole(value, self.name)
        if issubclass(self.kind, Parameter):
            return self.kind.named(value, self.name)
        return member(cast("type[StrEnum]", self.kind), value, self.name)


def size(
    doc: str,
    *,
    default: int | None = None,
    usual: int | None = None,
    flags: tuple[str, ...] = (),
    of_batch: bool = False,
) -> Any:
    """Declare a size among the fields of a problem; see `Field`. Flags are ``-x`` or ``--long-name`` by default."""
    return _declared(doc, default, usual=usual, flags=flags, of_batch=of_batch)


def trait(
    default: StrEnum,
    doc: str,
    *,
    near: bool = False,
    unsaid: bool = False,
    of_batch: bool = False,
) -> Any:
    """Declare a trait among the fields of a problem; see `Field`. Its flag is ``--long-name``."""
    return _declared(doc, default, near=near, unsaid=unsaid, of_batch=of_batch)


def parameter(default: Parameter, doc: str) -> Any:
    """Declare a parameter among the fields of a problem; see `Field`. Its flag is ``--long-name``."""
    return _declared(doc, default)


def element_type() -> Any:
    """Declare the field ``dtype``, which all problems have."""
    return trait(DType.FLOAT32, "element type of matrix, operands and result; sums are float32")


def batch_size() -> Any:
    """Declare the field ``batch``, which all problems have."""
    doc = "batch elements on the same pattern that one launch computes, such as heads of attention"
    return size(doc, default=1, flags=("--batch", "--heads"), of_batch=True)


def _declared(doc: str, default: int | StrEnum | Parameter | None, **metadata: object) -> Any:
    metadata["doc"] = doc
    if default is None:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class FieldNames(NamedTuple):
    """Names of a problem class's fields by what they are, each in order; `batch` is none of the sizes."""

    sizes: tuple[str, ...]
    traits: tuple[str, ...]
    parameters: tuple[str, ...]


@cache
def field_names(problem_type: type) -> FieldNames:
    """The names of a problem class's fields by what they are."""
    fields = fields_of(problem_type).values()
    return FieldNames(
        tuple(f.name for f in fields if f.is_size and f.name != "batch"),
        tuple(f.name for f in fields if f.is_trait),
        tuple(f.name for f in fields if not f.is_size and not f.is_trait),
    )


@cache
def fields_of(problem_type: type) -> Mapping[str, Field]:
    """The fields of a problem class by name, in order.

    Raises:
        TypeError: one of them was not declared with `size`, `trait` or `parameter`.
    """
    hints = get_type_hints(problem_type)
    found = {}
    for field in dataclasses.fields(cast(Any, problem_type)):
        if "doc" not in field.metadata:
            raise TypeError(
                f"{problem_type.__name__}.{field.name} is to be declared with size(), trait() or parameter()"
            )
        declared = dict(field.metadata)
        short = f"-{field.name}" if len(field.name) == 1 else f"--{field.name.replace('_', '-')}"
        found[field.name] = Field(
            field.name,
            hints[field.name],
            default=None
            if field.default is dataclasses.MISSING
            else cast("int | StrEnum | Parameter", field.default),
            **declared | {"flags": declared.get("flags") or (short,)},
        )
    return MappingProxyType(found)


def member(kind: type[E], value: E | str, name: str, error: type[SparsegenError] = ConfigError) -> E:
    """Return the enumeration's member for a word.

    Raises:
        SparsegenError: ``error``: there is none; the message lists those there are.
    """
    return arguments.word(kind, value, name, error)
