"""The process that says what is right, and what the device can do: expected results, and rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.bench.case import Operator
from sparsegen.bench.device_code import expected_on_device
from sparsegen.bench.expected import Expected, expected_on_host
from sparsegen.bench.parcel import Parcel
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import Layout
from sparsegen.system.child import answer, requests

CHECKED_ELEMENTS = 64  # of an expected result from the device, held against the host's
ROUNDING = 1e-12  # of sums in float64, relative to the sum of absolute values


@dataclass(frozen=True, slots=True)
class SetUp:
    """The first message. On a CUDA device expected results are computed there, but for batches; else on the host."""

    device: Device


@dataclass(frozen=True, slots=True)
class Expect:
    """Compute and keep a parcel's expected result. Answered with where, in words; empty for the host."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class MeasureRates:
    """Answered with `MeasuredRates`; the device must be free, and a CUDA one."""


def serve(connection: Connection) -> None:
    """Runs in the child."""
    set_up: SetUp = connection.recv()
    referee = _Referee(set_up.device)
    for request in requests(connection):
        answer(connection, partial(referee.handle, request))


class _Referee:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._opened: Executor | None = None

    @property
    def _executor(self) -> Executor:
        if self._opened is None:
            self._opened = backends.open_executor(self._device)
        return self._opened

    def handle(self, request: Any) -> Any:
        if isinstance(request, Expect):
            return self._expect(request.parcel)
        from sparsegen.backends.cuda.runtime import CudaExecutor
        from sparsegen.measure.rates import measure_rates

        assert isinstance(request, MeasureRates) and isinstance(self._executor, CudaExecutor)
        return measure_rates(self._executor)

    def _expect(self, parcel: Parcel) -> str:
        if self._device.backend != "cuda" or parcel.task.batch > 1:
            expected_on_host(parcel).keep(parcel)
            return ""
        expected = expected_on_device(parcel, self._executor)
        check_against_host(parcel, expected)
        expected.keep(parcel)
        return f"float64 on the device, {CHECKED_ELEMENTS} elements of it checked on the host"


def check_against_host(parcel: Parcel, expected: Expected) -> None:
    """Hold some elements against float64 on the host.

    Raises:
        SparsegenError: they differ, so that nothing can be checked on this device.
    """
    count = expected.exact.size
    exact, magnitude = expected.exact.reshape(-1), expected.magnitude.reshape(-1)
    places = np.random.default_rng(1).integers(count, size=min(CHECKED_ELEMENTS, count)) if count else ()
    matrix = parcel.matrix()
    for place in map(int, places):
        right, found = element(parcel, matrix, place), float(exact[place])
        if not abs(found - right) <= ROUNDING * (1.0 + float(magnitude[place])):
            raise SparsegenError(
                f"the device's float64 result of {parcel.task} is wrong: {found!r} at {place}, "
                f"{right!r} on the host"
            )


def element(parcel: Parcel, matrix: CsrMatrix, place: int) -> float:
    """One element of a row's result in float64; ``place`` counts through it as it is stored."""
    task = parcel.task

    def real(stored: Any) -> Any:
        return task.dtype.from_storage(np.asarray(stored)).astype(np.float64)

    if task.operator is Operator.SDDMM:
        row = int(np.searchsorted(matrix.row_offsets, place, side="right")) - 1
        return float(real(parcel.operand("a")[row]) @ real(parcel.operand("b")[matrix.column_indices[place]]))
    by_rows = task.layout is Layout.ROW
    row, column = divmod(place, task.n) if by_rows else divmod(place, task.m)[::-1]
    part = slice(int(matrix.row_offsets[row]), int(matrix.row_offsets[row + 1]))
    indices, b = matrix.column_indices[part], parcel.operand("b")
    values = matrix.values[part].astype(np.float64)
    return float(values @ real(b[indices, column] if by_rows else b[column, indices]))
