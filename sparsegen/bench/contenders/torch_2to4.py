"""2:4 sparsity through PyTorch and cuSPARSELt, where the pattern has at most two of every four."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.bench.case import Operator
from sparsegen.bench.contender import Contender, MissingError, Stopwatch, UnsupportedError, Way
from sparsegen.bench.contenders._torch import TensorResult, import_torch, nbytes, open_torch, to_tensor
from sparsegen.bench.results import Kind
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout


class Torch2to4(Contender):
    name, kind = "torch-2to4", Kind.SPARSE

    def why_not(self, task: Task, features: Features) -> str | None:
        if task.operator is not Operator.SPMM:
            return "it computes spmm"
        if task.dtype is DType.FLOAT32:
            return "it takes 16-bit values"
        if features.row_max > features.k // 2:
            return "a row has more than half of its elements"
        if task.m % 16 or task.k % 16 or task.n % 8:
            return "m and k must be multiples of 16, n of 8"
        return None

    def open(self, executor: Executor) -> Mapping[str, str]:
        versions = open_torch(executor)
        torch = import_torch()
        if not torch.backends.cusparselt.is_available():
            raise MissingError("this PyTorch has no cuSPARSELt")
        return {**versions, "cusparselt": str(torch.backends.cusparselt.version())}

    def ways(self, bench: Workbench) -> Iterator[Way]:
        if not is_2to4(bench.matrix):
            raise UnsupportedError("some four neighbours in a row hold more than two nonzeros")
        torch, task = import_torch(), bench.task
        b = to_tensor(bench.operand("b"), task.dtype)
        watch = Stopwatch()
        dense = task.dtype.to_storage(bench.matrix.to_scipy().toarray())
        sparse = torch.sparse.to_sparse_semi_structured(to_tensor(dense, task.dtype))
        torch.cuda.synchronize()
        elapsed = watch.lap()
        by_rows = task.layout is Layout.ROW
        result = TensorResult(bench, task.result_shape(bench.matrix.nnz))

        def run() -> None:
            result.tensor = sparse @ b if by_rows else (sparse @ b.t()).t()

        run()
        yield Way(
            "cuSPARSELt, default algorithm", run, result.clear, result.read, elapsed, nbytes(sparse.packed)
        )


def is_2to4(matrix: CsrMatrix) -> bool:
    """Whether every aligned four columns of every row hold at most two nonzeros."""
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.row_offsets))
    fours = rows * -(-matrix.shape[1] // 4) + matrix.column_indices // 4
    # Sorted as CSR is, so that three of one four stand next to each other.
    return not bool(np.any(fours[2:] == fours[:-2]))


CONTENDER = Torch2to4()
