"""cuSPARSE's SpMM on compressed sparse rows: the best of its algorithms and layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsegen.backends.executor import Executor
from sparsegen.bench.contender.contender import Contender, Stopwatch, Way
from sparsegen.bench.contender.workbench import Workbench
from sparsegen.bench.contenders._vendor import cuda, dense_orders, require_library, ways_of
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cusparse
from sparsegen.operators import Problem, SpmmProblem


class CusparseCsr(Contender):
    name, kind = "cusparse-csr", Kind.SPARSE
    operators: tuple[type[Problem], ...] = (SpmmProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return None if isinstance(problem, SpmmProblem) else "it computes spmm"

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cusparse")
        return {"cusparse": cusparse.version(cusparse.open_handle())}

    def ways(self, bench: Workbench) -> Iterator[Way]:
        matrix, b = bench.matrix, dense_orders(bench)
        watch = Stopwatch()
        offsets, columns, values = (
            bench.executor.upload(a) for a in (matrix.row_offsets, matrix.column_indices, bench.encoded)
        )
        arrays = offsets, columns, values
        calls = cusparse.csr_calls(cuda(bench), bench.problem_as(SpmmProblem), arrays, matrix.nnz, b)
        yield from ways_of(bench, calls, watch.lap())


CONTENDER = CusparseCsr()
