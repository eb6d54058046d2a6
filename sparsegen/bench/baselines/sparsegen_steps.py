"""Our attention as three operators one after the other: scores at the mask, their softmax, the product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from sparsegen.attention.choice import AttentionImplementation as Attention
from sparsegen.attention.steps import at_once, prepare_attention
from sparsegen.bench.baseline.baseline import Implementation, MissingError, OwnBaseline, Stopwatch
from sparsegen.bench.baseline.workbench import ResultBuffer, Workbench
from sparsegen.bench.baselines._attention import TOLERANCES
from sparsegen.bench.results.results import Kind
from sparsegen.errors import NoVariantError
from sparsegen.operators import (
    ItemValues,
    Problem,
    SddmmProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.verify.verifier import verifier


class SparsegenSteps(OwnBaseline):
    """Our attention in steps (`sparsegen.prepare_attention`): any dtype, the scores in memory."""

    name, kind = "sparsegen-steps", Kind.OURS
    operators = (SparseAttentionProblem,)
    takes_variations = True  # heads

    def parts(self, problem: Problem, nnz: int) -> Sequence[Problem]:
        assert isinstance(problem, SparseAttentionProblem)
        m, n, k, dtype = problem.m, problem.n, problem.k, problem.dtype
        batch = at_once(problem.batch, nnz * dtype.itemsize)
        values = ItemValues.OWN if batch > 1 else ItemValues.SHARED
        return (
            SddmmProblem(m, n, k, dtype, batch=batch),
            SoftmaxProblem(m, n, dtype, batch=batch),
            SpmmProblem(m, n, k, dtype, batch=batch, item_values=values),
        )

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem_as(SparseAttentionProblem)
        result = bench.result()
        addresses = [bench.upload(name).address for name in "qkv"]
        watch = Stopwatch()
        try:
            operator = prepare_attention(
                bench.matrix,
                heads=problem.batch,
                head_dim=problem.k,
                dtype=problem.dtype,
                scale=float(bench.operand("scale")[0]),
                implementation=Attention.STEPS,
                device=bench.device,
                db=bench.db,
            )
        except NoVariantError as error:
            raise MissingError(str(error)) from error
        operator.bound()
        elapsed = watch.lap()
        families = (
            f"{part}: {choice.family.name} ({choice.how})" for part, choice in operator.choices.items()
        )
        yield Implementation(
            detail=", ".join(families),
            run=lambda: operator.bound()(0, *addresses, result.buffer.address),
            clear=result.clear,
            read=result.read,
            preparation_ms=elapsed,
            memory_bytes=operator.work_bytes,
            own_error=partial(_error, bench, result) if problem.dtype.itemsize == 2 else None,
        )


def _error(bench: Workbench, result: ResultBuffer) -> float:
    """Largest error over its tolerance for 16 bits, to which scores and weights are rounded on their way."""
    operands, dtype = bench.inputs.operands(), bench.problem.dtype
    exact = verifier(bench.problem, bench.matrix, operands, bench.executor).reference().exact
    error = np.abs(dtype.from_storage(result.read()).astype(np.float64) - exact).max(initial=0.0)
    worst = float(error / max(np.abs(exact).max(initial=0.0), np.finfo(np.float32).tiny))
    return worst / TOLERANCES[dtype] if worst == worst else float("inf")


BASELINES = (SparsegenSteps(),)
