"""The fields of a problem, which are all that it is told by: in names, in JSON, in what users give."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Self, cast

from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import Field, Parameter, field_names, fields_of
from sparsegen.system.compared import Compared


class ProblemFields(Compared, ABC):
    """Common behaviour that follows from a problem's declared fields; see `Problem`, which adds what is computed.

    Raises:
        ConfigError: a size is no whole number or out of range, or a trait has no such value.
    """

    __slots__ = ()

    operator: ClassVar[str]
    matrix_sizes: ClassVar[tuple[str, str]]
    dense_sizes: ClassVar[tuple[str, ...]]
    has_pattern: ClassVar[bool] = True

    dtype: DType
    batch: int

    def __post_init__(self) -> None:
        for name, field in self.fields.items():
            if type(value := getattr(self, name)) is not field.kind:
                object.__setattr__(self, name, field.parsed(value))
        for name, size in (self.sizes | {"batch": self.batch}).items():
            least = 0 if name in self.matrix_sizes and self.has_pattern else 1
            if not least <= size <= MAX_INDEX:
                raise ConfigError(f"{name} = {size} is outside [{least}, {MAX_INDEX}]")

    def __str__(self) -> str:
        sizes = [f"{name}={value}" for name, value in {**self.sizes, **self.parameters}.items()]
        if self.batch > 1:
            sizes.append(f"batch={self.batch}")
        traits = (
            f"{name}={trait}" if field.near else trait.value
            for name, trait in self.traits.items()
            if not (field := self.fields[name]).unsaid or trait != field.default
        )
        return " ".join([self.operator, *sizes, *traits])

    @property
    def fields(self) -> Mapping[str, Field]:
        """The declarations of its fields by name, in order."""
        return fields_of(type(self))

    @property
    def sizes(self) -> dict[str, int]:
        """Every size of a batch element by name, in the order of the fields."""
        return {name: getattr(self, name) for name in field_names(type(self)).sizes}

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the sparse matrix."""
        rows, columns = self.matrix_sizes
        return getattr(self, rows), getattr(self, columns)

    @property
    def traits(self) -> dict[str, StrEnum]:
        """Fields that have named values: dtype, layouts, epilogue, whether batch elements have their own values."""
        return {name: getattr(self, name) for name in field_names(type(self)).traits}

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Fields that are neither sizes nor traits, by name, such as the expected density of a mask."""
        return {name: getattr(self, name) for name in field_names(type(self)).parameters}

    @property
    def kind(self) -> tuple[str, ...]:
        """Operator and traits but for those that are `near`, as an epilogue, which touches the result once: times of
        one kind compare.
        """
        return (
            self.operator,
            *(value for name, value in self.traits.items() if not self.fields[name].near),
        )

    @classmethod
    def kind_of(cls, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the kind of the problem that `from_dict` makes of fields as JSON values, without making it.

        Raises:
            ValueError: a word that a trait does not have, or a trait without a default is missing.
        """
        fields = fields_of(cls)
        traits = [field for name in field_names(cls).traits if not (field := fields[name]).near]
        words = [cast("type[StrEnum]", f.kind)(values.get(f.name, f.default)) for f in traits]
        return cls.operator, *words

    def to_dict(self) -> dict[str, int | float | str]:
        """Return all fields as JSON values; `from_dict` is the inverse."""
        return {name: _json(getattr(self, name)) for name in self.fields}

    def named(self) -> dict[str, int | float | str]:
        """Return the operator's name and all fields as JSON values: the form that commands print."""
        return {"operator": self.operator, **self.to_dict()}

    def distinct(self) -> dict[str, int | float | str]:
        """Return the fields that have no default or another value, as JSON values: the form that databases and files
        keep, so that an operator may get more fields; `from_dict` is the inverse.
        """
        values = ((name, getattr(self, name), field.default) for name, field in self.fields.items())
        return {name: _json(value) for name, value, default in values if value != default}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Make a problem of fields as JSON values; those that are left out have their defaults.

        Raises:
            KeyError: a field without a default is missing.
            ValueError, ConfigError: a value that its field cannot have.
        """
        fields = fields_of(cls).items()
        return cls(
            **{
                name: field.from_json(values[name])
                for name, field in fields
                if name in values or field.default is None
            }
        )

    @classmethod
    def of(cls, shape: tuple[int, int], /, **options: object) -> Self:
        """The problem for a sparse matrix of this shape, or, without one (`has_pattern`), for a mask of this shape.

        Args:
            options: the other fields by name; None for one that is not given.

        Raises:
            ConfigError: a field is missing, unknown or has no such value; the message lists what there is.
        """
        fields = fields_of(cls)
        given: dict[str, Any] = {}
        for name, value in options.items():
            if value is None:
                continue
            if name not in fields or name in cls.matrix_sizes:
                known = [n for n in fields if n not in cls.matrix_sizes]
                sizes = () if cls.has_pattern else cls.matrix_sizes
                raise ConfigError(f"{cls.operator} takes no {name}; it takes {', '.join((*sizes, *known))}")
            given[name] = fields[name].parsed(value)
        missing = [name for name in cls.dense_sizes if name not in given]
        if missing:
            raise ConfigError(f"{cls.operator} needs {' and '.join(missing)}")
        return cls(**dict(zip(cls.matrix_sizes, shape, strict=True)), **given)


def _json(value: int | StrEnum | Parameter) -> int | float | str:
    """The value of a field as JSON has it."""
    if isinstance(value, Parameter):
        return value.json
    return str(value) if isinstance(value, StrEnum) else value
