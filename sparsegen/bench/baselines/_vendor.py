"""Shared parts of the baselines that call NVIDIA's libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.backends.executor import Buffer
from sparsegen.bench.baseline.baseline import Implementation, MissingError, Stopwatch
from sparsegen.bench.baseline.workbench import ResultBuffer, Workbench
from sparsegen.measure.baselines import Call, cusparse
from sparsegen.measure.baselines.libraries import LibraryUnavailableError, find_library
from sparsegen.operators import Layout, SpmmProblem


def require_library(name: str) -> None:
    """Load a library.

    Raises:
        MissingError: it is not installed.
    """
    try:
        find_library(name)
    except LibraryUnavailableError as error:
        raise MissingError(str(error)) from error


def cuda(bench: Workbench) -> CudaExecutor:
    """The bench's executor, which is a CUDA one where these baselines run."""
    return cast(CudaExecutor, bench.executor)


def result_of(bench: Workbench, call: Call) -> ResultBuffer:
    """The buffer that a call for an SpMM writes."""
    problem = bench.problem_as(SpmmProblem)
    return ResultBuffer(
        bench.executor,
        problem.dtype,
        (problem.n, problem.m) if call.columns else (problem.m, problem.n),
        transposed=call.columns != (problem.layout is Layout.COLUMN),
        buffer=call.result,
    )


def dense_orders(bench: Workbench) -> Callable[[int], Buffer]:
    """Uploads B in cuSPARSE's orders now, so that the time counts for no baseline."""
    stored = np.asarray(bench.operand("b"))
    rows = stored if bench.problem_as(SpmmProblem).layout is Layout.ROW else stored.T
    orders = {
        cusparse.ROW_ORDER: bench.executor.upload(np.ascontiguousarray(rows)),
        cusparse.COLUMN_ORDER: bench.executor.upload(np.ascontiguousarray(rows.T)),
    }
    return orders.__getitem__


def implementations_of(bench: Workbench, calls: Iterable[Call], shared_ms: float) -> Iterator[Implementation]:
    """A baseline's calls as implementations; ``shared_ms``: the part of their preparation that they share."""
    watch = Stopwatch()
    for call in calls:
        elapsed = shared_ms + watch.lap()
        result = result_of(bench, call)
        yield Implementation(call.detail, call.run, result.clear, result.read, elapsed, call.memory_bytes)
        watch.lap()
