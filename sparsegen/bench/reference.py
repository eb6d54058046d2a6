"""The process that computes what is right, and measures what the device can do: references, and rates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.results import Kind
from sparsegen.kernels.base import Device
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, Reference
from sparsegen.system.child import answer, requests
from sparsegen.verify.bounds import ErrorBound
from sparsegen.verify.verifier import verifier


@dataclass(frozen=True, slots=True)
class SetUp:
    """The first message. On a CUDA device references are computed there, else on the host."""

    device: Device


@dataclass(frozen=True, slots=True)
class ComputeReference:
    """Keep a parcel's reference as files beside its operands. Answered with where it was computed, in words; empty
    for the host.
    """

    parcel: Parcel


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

    @cached_property
    def _executor(self) -> Executor:
        return backends.open_executor(self._device)

    def handle(self, request: Any) -> Any:
        if isinstance(request, ComputeReference):
            return keep_reference(request.parcel, self._executor)
        from sparsegen.backends.cuda.runtime import CudaExecutor
        from sparsegen.measure.rates import measure_rates

        assert isinstance(request, MeasureRates) and isinstance(self._executor, CudaExecutor)
        return measure_rates(self._executor)


def keep_reference(parcel: Parcel, executor: Executor) -> str:
    """Compute a parcel's reference and write it as files; where it was computed, in words (see `Verifier.source`)."""
    operands = {name: np.asarray(operand) for name, operand in parcel.operands().items()}
    found = verifier(parcel.problem, parcel.matrix(), operands, executor)
    reference = found.reference()
    parcel.keep("exact", reference.exact)
    parcel.keep("magnitude", reference.magnitude.astype(np.float32, copy=False))
    parcel.keep("terms", reference.terms)
    return found.source


def kept_reference(parcel: Parcel) -> Reference:
    """What `keep_reference` wrote, mapped."""
    exact, magnitude, terms = (parcel.kept(name) for name in ("exact", "magnitude", "terms"))
    written = parcel.problem.result(parcel.features.nnz)
    assert isinstance(written.dtype, DType)
    return Reference(exact, magnitude, terms, written.dtype)


def bound_for(kind: Kind, arithmetic: Arithmetic, dtype: DType) -> ErrorBound:
    """How far the results of such a contender may lie from the reference."""
    if kind is Kind.OURS:
        return ErrorBound.ours(dtype)
    return ErrorBound.tf32() if arithmetic is Arithmetic.TF32 else ErrorBound.vendors(dtype)
