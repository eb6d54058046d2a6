"""Dense cuBLAS in the row's own type: the better of both storage orders of A.

For sddmm it computes the whole product, in either order of the result. For products with masks too: of a masked operand
it gets the zeros, of a masked result the mask comes when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.backends.plain import THREADS
from sparsegen.bench.baseline.baseline import Baseline, Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import ResultBuffer, Workbench
from sparsegen.bench.baselines._live_blocks import WholeProduct
from sparsegen.bench.baselines._vendor import cuda, implementations_of, require_library
from sparsegen.bench.results.results import Kind
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cublas
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, FactorType, MaskedProblem, Problem, SddmmProblem, SpmmProblem
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.numpy_types import Array

LARGEST_DENSE_BYTES = 12 << 30


class DenseMatrix:
    """The row's sparse matrix with its zeros, made on the device: on the host it takes seconds."""

    def __init__(self, bench: Workbench) -> None:
        self._bench, executor, matrix = bench, bench.executor, bench.matrix
        entry = f"scatter_{8 * bench.problem.dtype.itemsize}"
        (self._kernel,) = plain_launchers(executor, "dense.cu", entry)
        arrays = (matrix.row_offsets, matrix.column_indices, bench.encoded)
        self._arrays = [executor.upload(array) for array in arrays]

    def stored(self, by_rows: bool) -> Buffer:
        """A new buffer with the whole matrix, row-major or column-major."""
        executor, (m, k) = self._bench.executor, self._bench.matrix.shape
        dense = executor.allocate(m * k * self._bench.problem.dtype.itemsize)
        executor.fill(dense, 0)
        strides = (k, 1) if by_rows else (1, m)
        launch = Launch((m, 1, 1), (THREADS, 1, 1))
        self._kernel.bind(launch, *strides, *self._arrays, dense)(0)  # on the default stream, as the fill
        executor.synchronize()
        return dense


@dataclass(frozen=True)
class Cublas(Baseline):
    """cuBLAS with one arithmetic of its sums and products; TF32 is for float32 data."""

    name: str
    compute: cublas.Compute = cublas.Compute.FLOAT32
    kind: Kind = field(default=Kind.DENSE, init=False)
    operators = (SpmmProblem, SddmmProblem, MaskedProblem)

    def arithmetic(self, problem: Problem) -> Arithmetic:
        return Arithmetic.TF32 if self.compute is cublas.Compute.TF32 else super().arithmetic(problem)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if self.compute is cublas.Compute.TF32 and problem.dtype is not DType.FLOAT32:
            return "TF32 is for float32 data"
        if not isinstance(problem, self.operators):
            return "it computes spmm, sddmm and products with masks"
        if isinstance(problem, MaskedProblem) and problem.factor_type is not FactorType.SAME:
            return "cublasGemmEx has no 8-bit factors"
        height, width = problem.matrix_shape
        size = height * width * problem.dtype.itemsize
        if size > LARGEST_DENSE_BYTES:
            return f"the dense matrix would take {size / 2**30:.0f} GiB"
        return None

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cublas")
        return {"cublas": cublas.version(cublas.open_handle())}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        if isinstance(bench.problem, SddmmProblem):
            yield from self._whole_products(bench, bench.problem)
            return
        if isinstance(bench.problem, MaskedProblem):
            yield self._unmasked_product(bench, bench.problem)
            return
        b, problem = bench.upload("b"), bench.problem_as(SpmmProblem)
        watch = Stopwatch()
        dense = DenseMatrix(bench)
        calls = cublas.products(cuda(bench), dense.stored, problem, b, self.compute)
        yield from implementations_of(bench, calls, watch.lap())

    def _whole_products(self, bench: Workbench, problem: SddmmProblem) -> Iterator[Implementation]:
        a, b = bench.upload("a"), bench.upload("b")
        handle = cublas.open_handle()
        operations = (cublas.TRANSPOSE, cublas.NO_TRANSPOSE)
        for by_rows in (True, False):
            watch = Stopwatch()
            # cuBLAS is column-major: a row-major C is the transpose of its own.
            of_a, of_b = (a, problem.m), (b, problem.n)
            (left, m), (right, n) = (of_b, of_a) if by_rows else (of_a, of_b)
            result = SampledBuffer(bench, (n, m), by_rows=by_rows)
            run = cublas.product(
                handle, problem.dtype, operations, (m, n, problem.k), (left, problem.k), (right, problem.k),
                (result.buffer, m), self.compute,
            )  # fmt: skip
            detail = f"the whole product, C {'row' if by_rows else 'column'}-major"
            yield Implementation(detail, run, result.clear, result.read, watch.lap(), 0)

    def _unmasked_product(self, bench: Workbench, problem: MaskedProblem) -> Implementation:
        whole = WholeProduct.of(bench, problem)
        watch = Stopwatch()
        handle = cublas.open_handle()
        run = cublas.product_of(handle, problem.dtype, whole.factors, self.compute, whole.scale)
        return Implementation(whole.detail, run, whole.result.clear, whole.read, watch.lap(), 0)


class SampledBuffer(ResultBuffer):
    """Buffer of a whole product; only the pattern's elements are read."""

    def __init__(self, bench: Workbench, shape: tuple[int, int], *, by_rows: bool) -> None:
        super().__init__(bench.executor, bench.problem.dtype, shape, transposed=not by_rows)
        self._pattern = bench.matrix

    def read(self) -> Array:
        whole = super().read()
        rows = np.repeat(np.arange(whole.shape[0]), np.diff(self._pattern.row_offsets))
        found: Array = whole[rows, self._pattern.column_indices]
        return found


BASELINES = (Cublas("cublas"), Cublas("cublas-tf32", cublas.Compute.TF32))
