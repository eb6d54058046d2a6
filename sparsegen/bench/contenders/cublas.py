"""Dense cuBLAS in the row's own type: the better of both storage orders of A.

For sddmm it computes the whole product, in either order of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparsegen.backends.executor import Executor
from sparsegen.bench.case import Operator
from sparsegen.bench.contender import Contender, Stopwatch, Way
from sparsegen.bench.contenders._vendor import cuda, require_library, ways_of
from sparsegen.bench.dense_matrix import DenseMatrix
from sparsegen.bench.results import Kind
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import ResultBuffer, Workbench
from sparsegen.kernels.base import Array
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cublas

LARGEST_DENSE_BYTES = 12 << 30


class Cublas(Contender):
    name, kind = "cublas", Kind.DENSE
    compute = cublas.Compute.FLOAT32

    def why_not(self, task: Task, features: Features) -> str | None:
        height, width = (task.m, task.n) if task.operator is Operator.SDDMM else (task.m, task.k)
        size = height * width * task.dtype.itemsize
        if size > LARGEST_DENSE_BYTES:
            return f"the dense matrix would take {size / 2**30:.0f} GiB"
        return None

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cublas")
        return {"cublas": cublas.version(cublas.open_handle())}

    def ways(self, bench: Workbench) -> Iterator[Way]:
        if bench.task.operator is Operator.SDDMM:
            yield from self._whole_products(bench)
            return
        b, problem = bench.upload("b"), bench.task.spmm
        watch = Stopwatch()
        dense = DenseMatrix(bench)
        calls = cublas.products(cuda(bench), dense.stored, problem, b, self.compute)
        yield from ways_of(bench, calls, watch.lap())

    def _whole_products(self, bench: Workbench) -> Iterator[Way]:
        task = bench.task
        a, b = bench.upload("a"), bench.upload("b")
        handle = cublas.open_handle()
        operations = (cublas.TRANSPOSE, cublas.NO_TRANSPOSE)
        for by_rows in (True, False):
            watch = Stopwatch()
            # cuBLAS is column-major: a row-major C is the transpose of its own.
            (left, m), (right, n) = ((b, task.n), (a, task.m)) if by_rows else ((a, task.m), (b, task.n))
            result = SampledBuffer(bench, (n, m), by_rows=by_rows)
            run = cublas.product(
                handle, task.dtype, operations, (m, n, task.k), (left, task.k), (right, task.k),
                (result.buffer, m), self.compute,
            )  # fmt: skip
            detail = f"the whole product, C {'row' if by_rows else 'column'}-major"
            yield Way(detail, run, result.clear, result.read, watch.lap(), 0)


class SampledBuffer(ResultBuffer):
    """A whole product, of which the pattern's elements are read."""

    def __init__(self, bench: Workbench, shape: tuple[int, int], *, by_rows: bool) -> None:
        super().__init__(bench.executor, bench.task.dtype, shape, transposed=not by_rows)
        self._pattern = bench.matrix

    def read(self) -> Array:
        whole = super().read()
        rows = np.repeat(np.arange(whole.shape[0]), np.diff(self._pattern.row_offsets))
        found: Array = whole[rows, self._pattern.column_indices]
        return found


CONTENDER = Cublas()
