"""cuSPARSE's SpMM on compressed sparse rows: the best of its algorithms and layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsegen.baselines import cusparse
from sparsegen.bench.case import Operator
from sparsegen.bench.contender import Contender, Way
from sparsegen.bench.contenders._vendor import cuda, require_library, ways_of
from sparsegen.bench.results import Kind
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.executor import Executor
from sparsegen.features import Features


class CusparseCsr(Contender):
    name, kind = "cusparse-csr", Kind.SPARSE

    def why_not(self, task: Task, features: Features) -> str | None:
        return None if task.operator is Operator.SPMM else "it computes spmm"

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cusparse")
        return {"cusparse": cusparse.version(cusparse.open_handle())}

    def ways(self, bench: Workbench) -> Iterator[Way]:
        return ways_of(
            bench, cusparse.calls(cuda(bench), bench.matrix, bench.task.problem, bench.operand("b"))
        )


CONTENDER = CusparseCsr()
