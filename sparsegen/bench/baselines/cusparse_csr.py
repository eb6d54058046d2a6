"""cuSPARSE's SpMM on compressed sparse rows: the best of its algorithms and layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import Baseline, Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._vendor import cuda, dense_orders, implementations_of, require_library
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cusparse
from sparsegen.operators import Problem, SpmmProblem


class CusparseCsr(Baseline):
    name, kind = "cusparse-csr", Kind.SPARSE
    operators: tuple[type[Problem], ...] = (SpmmProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return None if isinstance(problem, SpmmProblem) else "it computes spmm"

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cusparse")
        return {"cusparse": cusparse.version(cusparse.open_handle())}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        matrix, b = bench.matrix, dense_orders(bench)
        watch = Stopwatch()
        offsets, columns, values = (
            bench.executor.upload(a) for a in (matrix.row_offsets, matrix.column_indices, bench.encoded)
        )
        arrays = offsets, columns, values
        calls = cusparse.csr_calls(cuda(bench), bench.problem_as(SpmmProblem), arrays, matrix.nnz, b)
        yield from implementations_of(bench, calls, watch.lap())


BASELINE = CusparseCsr()
