"""A row's sparse matrix with its zeros, made on the device."""

from __future__ import annotations

from sparsegen.backends.executor import Buffer
from sparsegen.backends.plain import THREADS
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.kernels.launch import Launch
from sparsegen.plan.plain_launcher import plain_launchers


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
