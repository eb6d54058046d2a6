"""A probe: a variant and the dense product timed in turn, on the spot, where estimates do not tell which is faster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.clock import Clock
from sparsegen.measure.l2 import L2
from sparsegen.operators import Launcher, Problem
from sparsegen.plan.arrays import numpy_type
from sparsegen.tuning_db.records import MeasuredAs

ROUNDS = 3
SAMPLES = 3  # of each in a round
SECONDS = 0.004  # at the most for the samples of each in a round
L2_OF = {MeasuredAs.COLD: L2.COLD, MeasuredAs.CLEAN: L2.CLEAN, MeasuredAs.WARM: L2.WARM}


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph, by PyTorch or CuPy: nothing may be timed or checked then."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return True
    return cupy is not None and bool(cupy.cuda.get_current_stream().is_capturing())


def probed_us(
    sparse: Launcher,
    dense: Launcher,
    problem: Problem,
    matrix: CsrMatrix,
    executor: Executor,
    kind: MeasuredAs,
) -> tuple[float, float]:
    """Median microseconds of the variant and of the dense product, on random operands.

    Raises:
        LaunchError: a call failed, or there is no memory for the operands.
    """
    with executor.entered():
        clock = Clock(executor)
        calls = [_call(launcher, problem, matrix, executor) for launcher in (sparse, dense)]
        leads = [clock.lead_for(call) for call in calls]
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for call, lead, taken in zip(calls, leads, times, strict=True):
                timing = clock.time(
                    call, samples=SAMPLES, l2=L2_OF[kind], budget_s=SECONDS, warmup=1, lead=lead
                )
                taken += timing.samples_us
        executor.synchronize()
    return float(np.median(times[0])), float(np.median(times[1]))


def _call(launcher: Launcher, problem: Problem, matrix: CsrMatrix, executor: Executor) -> Callable[[], Any]:
    """A launch on operands of its own: tensors on a GPU, on the stream that its clock's events are in."""
    specs, result = problem.operands(matrix.nnz), problem.result(matrix.nnz)
    if executor.device.backend != "cuda":
        rng = np.random.default_rng(0)
        arrays = tuple(rng.standard_normal(spec.shape).astype(numpy_type(spec.dtype)) for spec in specs)
        return lambda: launcher.run(arrays, None, None)
    import torch

    place = torch.device("cuda", executor.device.index)
    kinds = [getattr(torch, str(spec.dtype)) for spec in (*specs, result)]
    tensors = tuple(
        torch.randn(spec.shape, device=place).to(kind) for spec, kind in zip(specs, kinds, strict=False)
    )
    out = torch.empty(result.shape, dtype=kinds[-1], device=place)
    stream = torch.cuda.default_stream(place)

    def call() -> None:
        with torch.cuda.stream(stream):
            launcher.run(tensors, out, None)

    torch.cuda.synchronize(place)
    return call
