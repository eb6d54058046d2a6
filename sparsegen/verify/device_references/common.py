"""Kernels of ``sparsegen/backends/plain``, and what a reference on the device is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.backends.executor import Address, Buffer, Executor
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Array
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType

SIGNIFICAND_BITS = {DType.FLOAT32: 24, DType.FLOAT16: 11, DType.BFLOAT16: 8}

Operands = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class DeviceReference:
    """Exact values (float64) and their bounds (float32) on the device, in the result's stored order."""

    exact: Buffer
    bound: Buffer

    def part(self, start: int, count: int) -> DeviceReference:
        """Some of the elements."""
        return DeviceReference(
            Address(self.exact.address + start * 8, count * 8),
            Address(self.bound.address + start * 4, count * 4),
        )

    def download(self, shape: tuple[int, ...], executor: Executor) -> tuple[Array, Array]:
        """Exact values and bounds on the host."""
        exact, bound = np.empty(shape, np.float64), np.empty(shape, np.float32)
        executor.download(self.exact, exact)
        executor.download(self.bound, bound)
        return exact, bound


def require_equal(right: bool, found: object, expected: object, where: object) -> None:
    """
    Raises:
        SparsegenError: the device computes something else than the host.
    """
    if not right:
        raise SparsegenError(
            f"the device's float64 result is wrong: {found!r} at {where}, {expected!r} on the host; nothing can be "
            "verified on this device"
        )


def values_in(dtype: DType, matrix: CsrMatrix) -> Array:
    """The matrix's values as the dtype holds them (float32)."""
    held: Array = dtype.from_storage(dtype.to_storage(matrix.values)).astype(np.float32)
    return held
