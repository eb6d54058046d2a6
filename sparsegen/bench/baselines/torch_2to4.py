"""2:4 sparsity through PyTorch and cuSPARSELt, where the pattern has at most two of every four."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import (
    Implementation,
    MissingError,
    Stopwatch,
    UnsupportedError,
)
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, import_torch, nbytes, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.matrix.two_four import is_two_four
from sparsegen.operators import DType, Layout, Problem, SpmmProblem


class Torch2to4(TorchBaseline):
    name, kind = "torch-2to4", Kind.SPARSE
    operators = (SpmmProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, SpmmProblem):
            return "it computes spmm"
        if problem.dtype is DType.FLOAT32:
            return "it takes 16-bit values"
        if features.row_max > features.k // 2:
            return "a row has more than half of its elements"
        if problem.m % 16 or problem.k % 16 or problem.n % 8:
            return "m and k must be multiples of 16, n of 8"
        return None

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = super().open(executor)
        torch = import_torch()
        if not torch.backends.cusparselt.is_available():
            raise MissingError("this PyTorch has no cuSPARSELt")
        return {**versions, "cusparselt": str(torch.backends.cusparselt.version())}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        if not is_two_four(bench.matrix):
            raise UnsupportedError("some four neighbours in a row hold more than two nonzeros")
        torch, problem = import_torch(), bench.problem_as(SpmmProblem)
        b = to_tensor(bench.operand("b"), problem.dtype)
        watch = Stopwatch()
        dense = problem.dtype.to_storage(bench.matrix.to_scipy().toarray())
        sparse = torch.sparse.to_sparse_semi_structured(to_tensor(dense, problem.dtype))
        torch.cuda.synchronize()
        elapsed = watch.lap()
        by_rows = problem.layout is Layout.ROW
        result = TensorResult(bench, problem.result(bench.matrix.nnz).shape)

        def run() -> None:
            result.tensor = sparse @ b if by_rows else (sparse @ b.t()).t()

        run()
        yield Implementation(
            "cuSPARSELt, default algorithm", run, result.clear, result.read, elapsed, nbytes(sparse.packed)
        )


BASELINES = (Torch2to4(),)
