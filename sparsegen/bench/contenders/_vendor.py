"""What the contenders that call NVIDIA's libraries share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from sparsegen.baselines import Call
from sparsegen.baselines.libraries import LibraryUnavailableError, find_library
from sparsegen.bench.contender import MissingError, Stopwatch, Way
from sparsegen.bench.workbench import ResultBuffer, Workbench
from sparsegen.operators import Layout
from sparsegen.runtime import CudaExecutor


def require_library(name: str) -> None:
    """Load a library.

    Raises:
        MissingError: it is not installed.
    """
    try:
        find_library(name)
    except LibraryUnavailableError as error:
        raise MissingError(str(error)) from None


def cuda(bench: Workbench) -> CudaExecutor:
    """The bench's executor, which is a CUDA one where these contenders run."""
    return cast(CudaExecutor, bench.executor)


def result_of(bench: Workbench, call: Call) -> ResultBuffer:
    """The buffer that a call writes."""
    task = bench.task
    return ResultBuffer(
        bench.executor,
        task.dtype,
        (task.n, task.m) if call.columns else (task.m, task.n),
        transposed=call.columns != (task.layout is Layout.COLUMN),
        buffer=call.result,
    )


def ways_of(bench: Workbench, calls: Iterable[Call]) -> Iterator[Way]:
    """A baseline's calls as ways; the first one's preparation is what they share as well as its own."""
    watch = Stopwatch()
    for call in calls:
        elapsed = watch.lap()
        result = result_of(bench, call)
        yield Way(call.detail, call.run, result.clear, result.read, elapsed, call.memory_bytes)
        watch.lap()
