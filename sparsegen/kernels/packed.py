"""The result of packing a matrix, on the host or on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from sparsegen.system.numpy_types import Array


class Memory(Protocol):
    """An array on the host, or a buffer on a device."""

    @property
    def nbytes(self) -> int: ...


M = TypeVar("M", bound=Memory)


@dataclass(frozen=True, slots=True, eq=False)
class Packed(Generic[M]):
    """A matrix laid out for one variant: ``Packed[Array]`` on the host, ``Packed[Buffer]`` on a device.

    Attributes:
        arrays: arrays by the names of the family's PACKED arguments.
        sizes: integers that only the packing knows (tasks, panels), for SIZE arguments and the launch.
        nnz: nonzeros of the matrix.
        values: name of the array in ``arrays`` that holds the matrix's values; None where only its pattern counts.
            Where the elements of a batch have their own (`Problem.value_sets`), the kernel finds a copy of this array
            for each, one behind the other.
        value_source: makes int32 numbers, for each element of that array the nonzero's in CSR order, or -1 for padding:
            new values on the same pattern are a gather through them. None where there is no such array, or where the
            numbers were not kept.
        scratch: bytes of each SCRATCH argument. Zero before the first launch, and left by every launch as the next one
            needs it; launches that share it must not overlap. Depends on the problem and the tunables that pack.
    """

    arrays: Mapping[str, M]
    sizes: Mapping[str, int]
    nnz: int
    values: str | None = None
    value_source: Callable[[], M] | None = None
    scratch: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, scratch memory not among them."""
        return sum(array.nbytes for array in self.arrays.values())


def empty_as_one(array: Array) -> Array:
    """An array of at least one element, so that its device pointer is never null."""
    return array if array.size else np.zeros(1, dtype=array.dtype)
