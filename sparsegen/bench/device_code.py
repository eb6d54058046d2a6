"""The device code that the benchmark itself needs: reference products and dense matrices."""

from __future__ import annotations

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.backends.plain import THREADS, compiled_kernels, elementwise
from sparsegen.bench.case import Operator
from sparsegen.bench.expected import Expected
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.kernels.base import Array, Launch
from sparsegen.operators import Layout


class DenseMatrix:
    """The row's sparse matrix with its zeros, made on the device: on the host it takes seconds."""

    def __init__(self, bench: Workbench) -> None:
        self._bench, executor, matrix = bench, bench.executor, bench.matrix
        entry = f"scatter_{8 * bench.task.dtype.itemsize}"
        (self._kernel,) = compiled_kernels(executor, ("dense.cu", entry))
        arrays = (matrix.row_offsets, matrix.column_indices, bench.encoded)
        self._arrays = [executor.upload(array) for array in arrays]

    def stored(self, by_rows: bool) -> Buffer:
        """A new buffer with the whole matrix, row-major or column-major."""
        executor, (m, k) = self._bench.executor, self._bench.matrix.shape
        dense = executor.allocate(m * k * self._bench.task.dtype.itemsize)
        executor.fill(dense, 0)
        strides = (k, 1) if by_rows else (1, m)
        executor.launch(self._kernel, Launch((m, 1, 1), (THREADS, 1, 1)), [*strides, *self._arrays, dense])
        executor.synchronize()
        return dense


def expected_on_device(parcel: Parcel, executor: Executor) -> Expected:
    """A row's result in float64, one thread for each element, by code that nothing else shares."""
    task, matrix = parcel.task, parcel.matrix()
    dense = {
        name: executor.upload(
            task.dtype.from_storage(np.asarray(parcel.operand(name))).astype(np.float32, copy=False)
        )
        for name in task.operand_shapes
    }
    shape = task.result_shape(matrix.nnz)
    count = int(np.prod(shape, dtype=np.int64))
    exact, magnitude = executor.allocate(count * 8), executor.allocate(count * 4)
    if task.operator is Operator.SDDMM:
        rows = np.repeat(np.arange(task.m, dtype=np.int32), np.diff(matrix.row_offsets))
        (kernel,) = compiled_kernels(executor, ("reference.cu", "sddmm_reference"))
        pattern = [executor.upload(rows), executor.upload(matrix.column_indices)]
        arguments: list[Buffer | int] = [count, task.k, *pattern, dense["a"], dense["b"], exact, magnitude]
    else:
        (kernel,) = compiled_kernels(executor, ("reference.cu", "spmm_reference"))
        sparse = [
            executor.upload(a)
            for a in (matrix.row_offsets, matrix.column_indices, matrix.values.astype(np.float32, copy=False))
        ]
        arguments = [task.m, task.n, *sparse, dense["b"], *_strides(task), exact, magnitude]
    executor.launch(kernel, elementwise(count), arguments)
    executor.synchronize()
    found: list[Array] = [np.empty(shape, np.float64), np.empty(shape, np.float32)]
    for buffer, array in zip((exact, magnitude), found, strict=True):
        executor.download(buffer, array)
    return Expected(found[0], found[1], Expected.terms_of(task, matrix.row_offsets))


def _strides(task: Task) -> tuple[int, int, int, int]:
    """From row to row and column to column of B, and of C."""
    return (task.n, 1, task.n, 1) if task.layout is Layout.ROW else (1, task.k, 1, task.m)
