"""The process that knows what is right, and measures what the device can do: references, and rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.inputs import Inputs, stored_result
from sparsegen.bench.results.results import Kind
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import empty_as_one
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType
from sparsegen.system.child import answer, requests
from sparsegen.system.numpy_types import Array
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.verifier import verifier


@dataclass(frozen=True, slots=True)
class SetUp:
    """The first message. On a CUDA device references are computed there, else on the host."""

    device: Device


@dataclass(frozen=True, slots=True)
class ComputeReference:
    """The reference of a row, which stays until the next one. Answered with where it was computed, in words; empty for
    the host.
    """

    inputs: Inputs


@dataclass(frozen=True, slots=True)
class Compare:
    """Hold a result, which `Inputs.store_result` wrote, against that reference. Answered with the largest error over
    its bound.
    """

    result: Path
    bound: ErrorBound


@dataclass(frozen=True, slots=True)
class MeasureRates:
    """Answered with `MeasuredRates`; the device must be free, and a CUDA one."""


def serve(connection: Connection) -> None:
    """Runs in the child."""
    set_up: SetUp = connection.recv()
    server = _Server(set_up.device)
    for request in requests(connection):
        answer(connection, partial(server.handle, request))


class _Server:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._reference: RowReference | None = None

    @cached_property
    def _executor(self) -> Executor:
        return backends.open_executor(self._device)

    def handle(self, request: object) -> Any:
        if isinstance(request, ComputeReference):
            self._reference = None  # its memory goes first
            self._reference = RowReference(request.inputs, self._executor)
            return self._reference.source
        if isinstance(request, Compare):
            assert self._reference is not None
            return self._reference.worst_error(stored_result(request.result), request.bound)
        from sparsegen.backends.cuda.runtime import CudaExecutor
        from sparsegen.measure.rates import measure_rates

        assert isinstance(request, MeasureRates) and isinstance(self._executor, CudaExecutor)
        return measure_rates(self._executor)


class RowReference:
    """Reference of a row's results; on a CUDA device both it and the comparison stay there.

    Attributes:
        source: place of its computation, in words (see `Verifier.source`).
    """

    def __init__(self, inputs: Inputs, executor: Executor) -> None:
        operands = {name: np.asarray(operand) for name, operand in inputs.operands().items()}
        self._written, self._executor = inputs.problem.result(inputs.features.nnz), executor
        self._verifier = verifier(inputs.problem, inputs.matrix(), operands, executor)
        self.source = self._verifier.source

    def worst_error(self, stored: Array, bound: ErrorBound) -> float:
        """The largest error of a result in storage form over its bound; one of another shape is infinitely wrong."""
        if stored.shape != self._written.shape or stored.dtype != self._written.dtype.storage:
            return float("inf")
        return self._verifier.worst_error(self._executor.upload(empty_as_one(stored)), bound)


def bound_for(kind: Kind, arithmetic: Arithmetic, dtype: DType) -> ErrorBound:
    """Returns the bound on the error of such a baseline's results."""
    if kind is Kind.OURS:
        return ErrorBound.ours(dtype)
    return ErrorBound.tf32() if arithmetic is Arithmetic.TF32 else ErrorBound.vendors(dtype)
