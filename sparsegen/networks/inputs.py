"""Inputs of networks on the host: zeros and ones as bits, other numbers as they are; rows of them for devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.matrix.csr import Array
from sparsegen.operators import DType

SAMPLED = 7  # one byte of so many tells how many ones an input has, about; no divisor of an image's side


class Inputs(Protocol):
    """Inputs of a network, one a row."""

    @property
    def count(self) -> int: ...

    @property
    def neurons(self) -> int: ...

    def rows(self, numbers: Array) -> Array:
        """Those of some inputs: uint8 of bits (`BitInputs`), or float16 or float32, inputs × neurons."""

    def values(self) -> Array:
        """All of them as real numbers, inputs × neurons, as the device has them."""

    def ones(self) -> Array:
        """About how many neurons of each input are on: inputs with more live longer."""

    def some(self, numbers: Array) -> Inputs:
        """These inputs alone."""


@dataclass(frozen=True, slots=True, eq=False)
class BitInputs:
    """Inputs of zeros and ones, 8 neurons in a byte: neuron j is bit j % 8 of byte j // 8.

    Attributes:
        bits: uint8, inputs × ⌈neurons / 8⌉.
        neurons: of an input.
    """

    bits: Array
    neurons: int

    def __post_init__(self) -> None:
        wanted = -(-self.neurons // 8)
        if self.bits.dtype != np.uint8 or self.bits.ndim != 2 or self.bits.shape[1] != wanted:
            raise OperandError(
                f"bits: expected uint8, inputs × {wanted} for {self.neurons} neurons, got {self.bits.dtype} "
                f"{self.bits.shape}"
            )

    @classmethod
    def of(cls, images: Array) -> BitInputs:
        """Of inputs × neurons, where 0 is off and all else on."""
        return cls(np.packbits(np.asarray(images) != 0, axis=1, bitorder="little"), images.shape[1])

    @property
    def count(self) -> int:
        return len(self.bits)

    def rows(self, numbers: Array) -> Array:
        return self.bits[numbers]

    def values(self) -> Array:
        return np.unpackbits(self.bits, axis=1, count=self.neurons, bitorder="little")

    def ones(self) -> Array:
        sampled = self.bits[:, SAMPLED // 2 :: SAMPLED]
        found: Array = np.unpackbits(sampled, axis=1).sum(axis=1, dtype=np.int64)
        return found

    def some(self, numbers: Array) -> BitInputs:
        return BitInputs(self.bits[numbers], self.neurons)


@dataclass(frozen=True, slots=True, eq=False)
class ByteInputs:
    """Inputs of zeros and ones as bytes or truth values, inputs × neurons; their rows are bits."""

    bytes: Array

    @property
    def count(self) -> int:
        return len(self.bytes)

    @property
    def neurons(self) -> int:
        return int(self.bytes.shape[1])

    def rows(self, numbers: Array) -> Array:
        return np.packbits(self.bytes[numbers], axis=1, bitorder="little")

    def values(self) -> Array:
        return self.bytes

    def ones(self) -> Array:
        found: Array = self.bytes[:, SAMPLED // 2 :: SAMPLED].sum(axis=1, dtype=np.int64)
        return found

    def some(self, numbers: Array) -> ByteInputs:
        return ByteInputs(self.bytes[numbers])


@dataclass(frozen=True, slots=True, eq=False)
class NumberInputs:
    """Inputs of any numbers that a dtype holds, inputs × neurons; their rows are in its storage form."""

    numbers: Array
    dtype: DType

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def neurons(self) -> int:
        return int(self.numbers.shape[1])

    def rows(self, numbers: Array) -> Array:
        held = self.dtype.to_storage(self.numbers[numbers])
        if not np.isfinite(self.dtype.from_storage(held)).all():
            raise OperandError(f"y: expected numbers that {self.dtype} holds")
        return held

    def values(self) -> Array:
        return self.dtype.rounded(self.numbers)

    def ones(self) -> Array:
        found: Array = np.count_nonzero(self.numbers[:, SAMPLED // 2 :: SAMPLED], axis=1)
        return found

    def some(self, numbers: Array) -> NumberInputs:
        return NumberInputs(self.numbers[numbers], self.dtype)


def as_inputs(y: Any, neurons: int, dtype: DType) -> Inputs:
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
    if len(shape) != 2 or shape[1] != neurons or shape[0] == 0:
        raise OperandError(f"y: expected inputs × {neurons} neurons, got shape {shape}")
    if not isinstance(y, np.ndarray):
        found: Inputs = y
        return found
    if y.dtype.kind not in "fiub":
        raise OperandError(f"y: expected numbers, got {y.dtype}")
    if y.dtype == np.bool_ or (y.dtype == np.uint8 and int(y.max()) <= 1):
        return ByteInputs(y)
    return NumberInputs(y, dtype)
