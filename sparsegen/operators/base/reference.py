"""The expected result, as plain data; `sparsegen.verify` holds results against it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegen.operators.base.dtype import DType
from sparsegen.system.device_memory import Address, Buffer, PlainDevice
from sparsegen.system.numpy_types import Array


class Reference(NamedTuple):
    """The expected result, with the magnitudes and term counts that bounds on its error are computed from.

    Attributes:
        exact: float64, in the result's stored shape.
        magnitude: array of the same shape which, times float32's unit roundoff and 4 · √(terms + 2), bounds the error
            of computing in float32. For sums it is the same sum of absolute values (Higham, Accuracy and Stability of
            Numerical Algorithms, 3.1).
        terms: number of terms of each sum, in a shape that broadcasts to the result's.
        dtype: the result's type.
    """

    exact: Array
    magnitude: Array
    terms: Array
    dtype: DType


class DeviceReference(NamedTuple):
    """A `Reference` in a device's memory: ``exact`` in float64, ``magnitude`` in float32, ``terms`` on the host."""

    exact: Buffer
    magnitude: Buffer
    terms: Array
    dtype: DType

    def part(self, start: int, count: int) -> DeviceReference:
        """Some of the elements, as stored."""
        return DeviceReference(
            Address(self.exact.address + 8 * start, 8 * count),
            Address(self.magnitude.address + 4 * start, 4 * count),
            self.terms,
            self.dtype,
        )

    def download(self, shape: tuple[int, ...], device: PlainDevice) -> Reference:
        """The same on the host, whose results have this shape."""
        count = int(np.prod(shape, dtype=np.int64))
        exact = device.download(self.exact, count, np.float64).reshape(shape)
        magnitude = device.download(self.magnitude, count, np.float32).reshape(shape)
        return Reference(exact, magnitude, self.terms, self.dtype)


def terms_stride(shape: tuple[int, ...], terms: tuple[int, ...]) -> int:
    """Returns the number of neighbouring results, as stored, that have equally many terms.

    Result i has ``terms.ravel()[i // stride % terms.size]``, which needs no array of the result's size.

    Args:
        shape: the results' shape.
        terms: the shape of their terms; dimensions that are not 1 stand side by side.
    """
    after = len(terms) - max((i + 1 for i, size in enumerate(terms) if size != 1), default=len(terms))
    return int(np.prod(shape[len(shape) - after :], dtype=np.int64))
