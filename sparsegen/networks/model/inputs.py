"""Inputs of networks on the host: zeros and ones as bits, other numbers as they are; rows of them for devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.networks.model.chunks import Chunk
from sparsegen.operators import DType
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array


class Inputs(Protocol):
    """Inputs of a network, one a row."""

    @property
    def count(self) -> int: ...

    @property
    def neurons(self) -> int: ...

    @property
    def are_bits(self) -> bool:
        """True if rows are bits, as those of `BitInputs`; else they are numbers in storage form."""

    @property
    def row_bytes(self) -> int: ...

    def write(self, part: Chunk, rows: Array) -> None:
        """Write a chunk of whole runs into uint8, inputs × ``row_bytes``; several threads may do so at a time.

        Raises:
            OperandError: numbers that the dtype does not hold.
        """

    def values(self) -> Array:
        """All of them as real numbers, inputs × neurons, as the device has them."""

    def some(self, numbers: Array) -> Inputs:
        """Selects the inputs with these numbers."""


def write_rows(inputs: Inputs, chunk: Chunk, begin: int, end: int, rows: Array) -> None:
    """Write a chunk's inputs from the one at ``begin`` to the one before ``end`` into uint8, as `Inputs.write` does.

    Raises:
        OperandError: numbers that the dtype does not hold.
    """
    filled = 0
    for part in chunk.parts(begin, end):
        inputs.write(part, rows[filled : filled + part.count])
        filled += part.count


@dataclass(frozen=True, slots=True, eq=False)
class BitInputs:
    """Inputs of zeros and ones, 8 neurons in a byte: neuron j is bit j % 8 of byte j // 8.

    Attributes:
        bits: uint8, inputs × ⌈neurons / 8⌉.
        neurons: neurons of an input.
    """

    bits: Array
    neurons: int

    def __post_init__(self) -> None:
        wanted = ceil_div(self.neurons, 8)
        if self.bits.dtype != np.uint8 or self.bits.ndim != 2 or self.bits.shape[1] != wanted:
            raise OperandError(
                f"bits: expected uint8, inputs × {wanted} for {self.neurons} neurons, got {self.bits.dtype} "
                f"{self.bits.shape}"
            )

    @classmethod
    def of(cls, images: Array) -> BitInputs:
        """The bits of inputs × neurons, where 0 is off and all else on."""
        return cls(np.packbits(np.asarray(images) != 0, axis=1, bitorder="little"), images.shape[1])

    @property
    def count(self) -> int:
        return len(self.bits)

    @property
    def are_bits(self) -> bool:
        return True

    @property
    def row_bytes(self) -> int:
        return int(self.bits.shape[1])

    def write(self, part: Chunk, rows: Array) -> None:
        given = part.rows_of(self.bits)
        rows.reshape(given.shape)[:] = given  # one copy, for which the interpreter is let go once

    def values(self) -> Array:
        return np.unpackbits(self.bits, axis=1, count=self.neurons, bitorder="little")

    def some(self, numbers: Array) -> BitInputs:
        return BitInputs(self.bits[numbers], self.neurons)


@dataclass(frozen=True, slots=True, eq=False)
class _ArrayInputs:
    """Inputs of an array, inputs × neurons."""

    array: Array

    @property
    def count(self) -> int:
        return len(self.array)

    @property
    def neurons(self) -> int:
        return int(self.array.shape[1])

    def some(self, numbers: Array) -> Self:
        return replace(self, array=self.array[numbers])


@dataclass(frozen=True, slots=True, eq=False)
class ByteInputs(_ArrayInputs):
    """Inputs of zeros and ones as bytes or truth values; their rows are bits."""

    @property
    def are_bits(self) -> bool:
        return True

    @property
    def row_bytes(self) -> int:
        return ceil_div(self.neurons, 8)

    def write(self, part: Chunk, rows: Array) -> None:
        rows[:] = np.packbits(part.rows_of(self.array), axis=2, bitorder="little").reshape(rows.shape)

    def values(self) -> Array:
        return self.array


@dataclass(frozen=True, slots=True, eq=False)
class NumberInputs(_ArrayInputs):
    """Inputs of any numbers that a dtype holds; their rows are in its storage form."""

    dtype: DType

    @property
    def are_bits(self) -> bool:
        return False

    @property
    def row_bytes(self) -> int:
        return self.neurons * self.dtype.itemsize

    def write(self, part: Chunk, rows: Array) -> None:
        given = np.ascontiguousarray(part.rows_of(self.array)).reshape(part.count, self.neurons)
        held = self.dtype.to_storage(given)
        require_finite(self.dtype.from_storage(held), given, self.dtype, part.numbers)
        rows[:] = held.view(np.uint8)

    def values(self) -> Array:
        return self.dtype.rounded(self.array)


def require_finite(held: Array, given: Array, dtype: DType, inputs: Array | None = None) -> None:
    """Refuse what a dtype does not hold.

    Args:
        held: inputs × neurons as the dtype has them.
        given: the same as the caller gave them.
        inputs: their numbers, where they are not all.

    Raises:
        OperandError: one is infinite or NaN; it says which.
    """
    finite = np.isfinite(held)
    if finite.all():
        return
    row, column = (int(at) for at in np.unravel_index(int(np.argmin(finite)), finite.shape))
    number = row if inputs is None else int(inputs[row])
    raise OperandError(
        f"y[{number}, {column}] = {given[row, column]}: expected finite numbers that {dtype} holds"
    )


def require_shape(shape: tuple[int, ...], neurons: int) -> None:
    """Raises OperandError for what are not inputs × neurons, or no inputs."""
    if len(shape) != 2 or shape[1] != neurons or shape[0] == 0:
        raise OperandError(f"y: expected inputs × {neurons} neurons, at least one input, got shape {shape}")


def as_inputs(y: object, neurons: int, dtype: DType) -> Inputs:
    """Inputs of an array on the host.

    Args:
        y: inputs × neurons, of numbers; or what is `Inputs` already.

    Raises:
        OperandError: another shape, or no numbers.
    """
    if isinstance(y, BitInputs | ByteInputs | NumberInputs):
        shape: tuple[int, ...] = (y.count, y.neurons)
    else:
        y = np.asarray(y)
        shape = y.shape
    require_shape(shape, neurons)
    if not isinstance(y, np.ndarray):
        found: Inputs = y
        return found
    if y.dtype.kind not in "fiub":
        raise OperandError(f"y: expected numbers, got {y.dtype}")
    if y.dtype == np.bool_ or (y.dtype == np.uint8 and int(y.max()) <= 1):
        return ByteInputs(y)
    return NumberInputs(y, dtype)
