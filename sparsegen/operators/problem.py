"""What every problem has: sizes, traits, operands, a result, a reference and a cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast, get_type_hints

import numpy as np

from sparsegen.csr import MAX_INDEX, CsrMatrix
from sparsegen.errors import ConfigError
from sparsegen.operators.dtype import Array, DType
from sparsegen.operators.reference import Reference

E = TypeVar("E", bound=StrEnum)


def member(kind: type[E], value: E | str, name: str) -> E:
    """The enumeration's member for a word.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name} = {value!r} is none of {', '.join(kind)}") from None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape as stored (row-major) and dtype of one dense operand or result.

    Attributes:
        alignment: bytes that divide an array's address; 0: as many as vector loads of whole rows need, at most 16
            (a one-dimensional array is read by elements).
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    alignment: int = 0

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Cost:
    """Useful work of one call: floating-point operations and the fewest bytes moved (each operand once)."""

    flop: int
    bytes: int


class Problem(ABC):
    """One instance of an operator. Subclasses are frozen dataclasses of integers (sizes) and `StrEnum`s (traits).

    A problem does not know the sparsity pattern, only its shape: what depends on the nonzeros takes their number.

    Attributes:
        operator: its name.
        matrix_sizes: the names of the sizes that are the sparse matrix's rows and columns; each may be 0.
        dense_sizes: the names of the other sizes; each is at least 1.

    Raises:
        ConfigError: a size is out of range.
    """

    __slots__ = ()

    operator: ClassVar[str]
    matrix_sizes: ClassVar[tuple[str, str]]
    dense_sizes: ClassVar[tuple[str, ...]]

    dtype: DType

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            least = 0 if name in self.matrix_sizes else 1
            if not least <= size <= MAX_INDEX:
                raise ConfigError(f"{name} = {size} is outside [{least}, {MAX_INDEX}]")

    def __str__(self) -> str:
        sizes = (f"{name}={size}" for name, size in self.sizes.items())
        traits = (f"epilogue={t}" if name == "epilogue" else t.value for name, t in self.traits.items())
        return " ".join([self.operator, *sizes, *traits])

    # --- its fields ---

    @property
    def sizes(self) -> dict[str, int]:
        """Every size by name, in the order of the fields."""
        return {name: getattr(self, name) for name, kind in field_types(type(self)).items() if kind is int}

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Rows and columns of the sparse matrix."""
        rows, columns = self.matrix_sizes
        return getattr(self, rows), getattr(self, columns)

    @property
    def traits(self) -> dict[str, StrEnum]:
        """Everything but the sizes: dtype, layouts, epilogue."""
        kinds = field_types(type(self)).items()
        return {name: getattr(self, name) for name, kind in kinds if kind is not int}

    @property
    def kind(self) -> tuple[str, ...]:
        """Operator and traits but for the epilogue, which touches the result once: times of one kind compare."""
        return (self.operator, *(value for name, value in self.traits.items() if name != "epilogue"))

    def to_dict(self) -> dict[str, int | str]:
        """The fields as JSON values; `from_dict` is the inverse."""
        return self.sizes | {name: str(value) for name, value in self.traits.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Raises KeyError for a missing field, ValueError for a value that is no size or word."""
        return cls(**{name: kind(values[name]) for name, kind in field_types(cls).items()})

    @classmethod
    def of(cls, shape: tuple[int, int], **options: int | str | None) -> Self:
        """The problem for a sparse matrix of this shape.

        Args:
            options: the other fields by name; None for one that is not given.

        Raises:
            ConfigError: a field is missing, unknown or has no such value; the message lists what there is.
        """
        kinds = field_types(cls)
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        takes = [name for name in kinds if name not in cls.matrix_sizes]
        for name, value in given.items():
            if name not in takes:
                raise ConfigError(f"{cls.operator} takes no {name}; it takes {', '.join(takes)}")
            if kinds[name] is not int:
                given[name] = member(kinds[name], value, name)
        missing = [name for name in cls.dense_sizes if name not in given]
        if missing:
            raise ConfigError(f"{cls.operator} needs {' and '.join(missing)}")
        return cls(**dict(zip(cls.matrix_sizes, shape, strict=True)), **given)

    # --- what it computes ---

    @abstractmethod
    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        """The dense inputs in call order, shapes as stored, for a pattern of nnz nonzeros."""

    @abstractmethod
    def result(self, nnz: int) -> TensorSpec:
        """The output for a pattern of nnz nonzeros."""

    @abstractmethod
    def cost(self, nnz: int) -> Cost:
        """Useful FLOP and the fewest bytes, for a pattern of nnz nonzeros."""

    @abstractmethod
    def reference(self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1) -> Reference:
        """The result and its error bound in float64, in the result's stored shape.

        Args:
            operands: in storage form, by name.
        """

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Fresh normal inputs, rounded to their dtypes, in storage form."""
        return {
            spec.name: spec.dtype.to_storage(rng.standard_normal(spec.shape, dtype=np.float32))
            for spec in self.operands(nnz)
        }


@cache
def field_types(problem_type: type[Problem]) -> dict[str, Any]:
    """The fields of a problem by name, in order: ``int`` for a size, an enumeration for a trait."""
    hints = get_type_hints(problem_type)
    return {field.name: hints[field.name] for field in fields(cast(Any, problem_type))}


def csr_bytes(rows: int, nnz: int, value_bytes: int) -> int:
    """Bytes of a CSR matrix with 32-bit indices and values of this size (0: a pattern)."""
    return nnz * (value_bytes + 4) + (rows + 1) * 4
