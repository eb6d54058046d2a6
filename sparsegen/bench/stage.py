"""The process that sets the stage for all contenders: it makes parcels and expected results, and measures rates.

A process of its own, so that the next row's host work goes on beside the present row's measuring, on other cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.bench.case import Case, Operator
from sparsegen.bench.device_code import expected_on_device
from sparsegen.bench.expected import Expected, expected_on_host
from sparsegen.bench.parcel import Parcel, ParcelMaker
from sparsegen.errors import SparsegenError
from sparsegen.executor import Executor
from sparsegen.family import Device
from sparsegen.operators import DType, Layout
from sparsegen.tuning.child import answer, requests

CHECKED_ELEMENTS = 64  # of an expected result from the device, held against the host's


@dataclass(frozen=True, slots=True)
class SetUp:
    """The first message: the device, and where files go. ``on_device``: where expected results come from."""

    device: Device
    folder: Path
    on_device: bool


@dataclass(frozen=True, slots=True)
class MakeParcel:
    case: Case
    dtype: DType


@dataclass(frozen=True, slots=True)
class Expect:
    """Compute and keep a parcel's expected result."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class MeasureRates:
    pass


def serve(connection: Connection) -> None:
    """Runs in the child."""
    set_up: SetUp = connection.recv()
    stage = _Stage(set_up)
    for request in requests(connection):
        answer(connection, partial(stage.handle, request))


class _Stage:
    def __init__(self, set_up: SetUp) -> None:
        self._set_up = set_up
        self._maker = ParcelMaker(set_up.folder)
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        if self._executor is None:
            self._executor = backends.open_executor(self._set_up.device)
        return self._executor

    def handle(self, request: Any) -> Any:
        if isinstance(request, MakeParcel):
            return self._maker.make(request.case, request.dtype)
        if isinstance(request, Expect):
            return self._expect(request.parcel)
        from sparsegen.bench.rates import measure_rates
        from sparsegen.runtime import CudaExecutor

        assert isinstance(request, MeasureRates) and isinstance(self.executor, CudaExecutor)
        return measure_rates(self.executor)

    def _expect(self, parcel: Parcel) -> str:
        """Returns where it was computed, in words; empty for the host."""
        if not self._set_up.on_device:
            operands = {name: np.asarray(parcel.operand(name)) for name in parcel.task.operand_shapes}
            parcel.expect(expected_on_host(parcel.task, parcel.matrix(), operands))
            return ""
        expected = expected_on_device(parcel, self.executor)
        check_against_host(parcel, expected)
        parcel.expect(expected)
        return f"float64 on the device, {CHECKED_ELEMENTS} elements of it checked on the host"


def check_against_host(parcel: Parcel, expected: Expected) -> None:
    """Hold some elements against float64 on the host.

    Raises:
        SparsegenError: they differ, so that nothing can be checked on this device.
    """
    task, matrix = parcel.task, parcel.matrix()
    count = expected.exact.size
    rng = np.random.default_rng(1)
    for place in rng.integers(count, size=min(CHECKED_ELEMENTS, count)):
        right = _element(parcel, int(place), matrix)
        found = float(expected.exact.reshape(-1)[place])
        if not abs(found - right) <= 1e-12 * (1.0 + float(expected.magnitude.reshape(-1)[place])):
            raise SparsegenError(
                f"the device's float64 result of {task} is wrong: {found!r} at {place}, {right!r} on the host"
            )


def _element(parcel: Parcel, place: int, matrix: Any) -> float:
    task = parcel.task
    real = task.dtype.from_storage
    if task.operator is Operator.SDDMM:
        row = int(np.searchsorted(matrix.row_offsets, place, side="right")) - 1
        left = real(np.asarray(parcel.operand("a")[row])).astype(np.float64)
        right = real(np.asarray(parcel.operand("b")[matrix.column_indices[place]])).astype(np.float64)
        return float(left @ right)
    by_rows = task.layout is Layout.ROW
    row, column = divmod(place, task.n) if by_rows else divmod(place, task.m)[::-1]
    b = parcel.operand("b")
    part = slice(int(matrix.row_offsets[row]), int(matrix.row_offsets[row + 1]))
    indices = matrix.column_indices[part]
    stored = b[indices, column] if by_rows else b[column, indices]
    return float(matrix.values[part].astype(np.float64) @ real(np.asarray(stored)).astype(np.float64))
