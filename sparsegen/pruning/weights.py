"""Named tensors that are pruned or left alone, wherever they are held; and those of NumPy in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.system.numpy_types import Array, NumpyType

PRUNABLE_DIMENSIONS = (2, 4)


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """Description of a tensor before it is read.

    Attributes:
        shape: stored shape.
        dtype: its owner's name for the type of its elements: ``float16``, ``torch.bfloat16``, ``BF16``.
        value_type: float32 or float64, the type that `Weights.read` returns: exact. None if it cannot be pruned.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    value_type: NumpyType | None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """(C_out, C_in · H · W) for a convolution's weights, the shape itself for a matrix."""
        return self.shape[0], math.prod(self.shape[1:])

    @property
    def obstacle(self) -> str | None:
        """Reason why this tensor cannot be pruned; None if it can."""
        if self.value_type is None:
            return f"elements of {self.dtype}"
        if len(self.shape) not in PRUNABLE_DIMENSIONS:
            return f"{len(self.shape)}-D"
        return None


class Weights(Protocol):
    """Tensors by name.

    Attributes:
        source: name of the whole in messages.
        specs: specifications of all tensors, in their own order, names unique.
    """

    @property
    def source(self) -> str: ...

    @property
    def specs(self) -> Sequence[WeightSpec]: ...

    def read(self, name: str) -> Array:
        """A prunable tensor's values, in its shape and as its ``value_type``; not to be changed."""


# Larger magnitudes are refused: the sum of a layer's squares would overflow float64. No float32 comes near.
LARGEST = 1e140

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_VALUE_TYPES: dict[str, NumpyType] = {
    "float16": _FLOAT32,
    "bfloat16": _FLOAT32,
    "float32": _FLOAT32,
    "float64": _FLOAT64,
}


def value_type(dtype: str) -> NumpyType | None:
    """Returns the type that holds NumPy's or PyTorch's floating type of this name exactly; None for all other types."""
    return _VALUE_TYPES.get(dtype.removeprefix("torch."))


def read_values(weights: Weights, spec: WeightSpec) -> Array:
    """A tensor's values, in its shape.

    Raises:
        MatrixError: it cannot be read; the message has the tensor's name.
    """
    try:
        return weights.read(spec.name)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise MatrixError(reason, source=weights.source, place=f"tensor {spec.name!r}") from error


def read_matrix(weights: Weights, spec: WeightSpec) -> Array:
    """A tensor's values as a matrix, `WeightSpec.matrix_shape`, C-contiguous.

    Raises:
        MatrixError: it cannot be read, or holds NaN, an infinity or a magnitude over `LARGEST`; the message has
            the tensor's name and the index.
    """
    values = read_values(weights, spec)
    usable = np.isfinite(values) if values.dtype == _FLOAT32 else np.abs(values) <= LARGEST
    if not usable.all():
        at = tuple(int(i) for i in np.unravel_index(int(usable.argmin()), values.shape))
        raise MatrixError(
            f"the value is {values[at]}; pruning ranks sums of squares and needs finite values up to {LARGEST:g}",
            source=weights.source,
            place=f"tensor {spec.name!r}, index {at}",
        )
    return np.ascontiguousarray(values.reshape(spec.matrix_shape))


class NumpyWeights:
    """Arrays in memory, none of them changed."""

    def __init__(self, arrays: Mapping[str, Array], source: str = "weights") -> None:
        self._arrays, self.source = arrays, source
        self.specs = [
            WeightSpec(name, array.shape, array.dtype.name, value_type(array.dtype.name))
            for name, array in arrays.items()
        ]

    def read(self, name: str) -> Array:
        array = self._arrays[name]
        return array.astype(value_type(array.dtype.name), copy=False)

    def pruned(self, name: str, mask: Array) -> Array:
        """A copy with zeros where ``mask`` (m × k) is false; dtype, byte order and memory order are kept."""
        array = self._arrays[name].copy(order="K")
        array[~mask.reshape(array.shape)] = 0
        return array


Masks = Callable[[str], Array]  # the m × k booleans of a tensor; called once for each that is pruned


class WeightFile(Weights, Protocol):
    """Weights of a file; ``source`` is its path."""

    def write(self, target: BinaryIO, pruned: Collection[str], masks: Masks) -> None:
        """Write the whole container again, all but the pruned tensors as they were.

        Args:
            target: an empty file that can be written, read and sought.
            pruned: names of the tensors that get zeros where their mask is false.
        """
