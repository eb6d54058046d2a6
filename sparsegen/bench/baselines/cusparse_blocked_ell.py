"""cuSPARSE's SpMM on Blocked-ELL: every row of blocks padded to the longest."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import numpy as np

from sparsegen.backends.executor import Buffer
from sparsegen.bench.baseline.baseline import Implementation, Stopwatch
from sparsegen.bench.baseline.blocks import NO_BLOCKS, Blocks, block_sizes, cut, has_blocks
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._vendor import cuda, dense_orders, implementations_of
from sparsegen.bench.baselines.cusparse_csr import CusparseCsr
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cusparse
from sparsegen.measure.baselines.libraries import Handle, checked
from sparsegen.operators import Problem, SpmmProblem
from sparsegen.system.numpy_types import Array

ALGORITHMS = {"alg1": 13}
SIZES_TRIED = 3


class CusparseBlockedEll(CusparseCsr):
    name = "cusparse-blocked-ell"

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return super().why_not(problem, features) or (None if has_blocks(features) else NO_BLOCKS)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        handle, b = cusparse.open_handle(), dense_orders(bench)
        for size in block_sizes(bench.matrix)[:SIZES_TRIED]:
            yield from self.implementations_of_size(bench, handle, size, b)

    def implementations_of_size(
        self, bench: Workbench, handle: Handle, size: int, b: Callable[[int], Buffer]
    ) -> Iterator[Implementation]:
        """Yields the implementations of one block size."""
        problem, matrix = bench.problem_as(SpmmProblem), bench.matrix
        watch = Stopwatch()
        columns, values = padded(cut(matrix, size))
        arrays = bench.executor.upload(columns), bench.executor.upload(problem.dtype.to_storage(values))

        def descriptor() -> ctypes.c_void_p:
            return _descriptor(handle, problem, size, columns.shape[1] * size, arrays)

        calls = cusparse.products(
            cuda(bench), handle, descriptor, problem, b, ALGORITHMS,
            format_name=f"Blocked-ELL {size}", stored_bytes=sum(a.nbytes for a in arrays), keep=arrays,
        )  # fmt: skip
        yield from implementations_of(bench, calls, watch.lap())


def padded(blocks: Blocks) -> tuple[Array, Array]:
    """Block columns (int32, -1 where there is none) and values as rows × (slots · size), row-major."""
    size, lengths = blocks.size, np.diff(blocks.offsets)
    slots = int(lengths.max(initial=1))
    columns = np.full((lengths.size, slots), -1, dtype=np.int32)
    values = np.zeros((lengths.size, size, slots, size), dtype=np.float32)
    rows = np.repeat(np.arange(lengths.size), lengths)
    places = np.arange(blocks.columns.size) - blocks.offsets[rows]
    columns[rows, places] = blocks.columns
    values[rows, :, places, :] = blocks.values
    return columns, values.reshape(lengths.size * size, slots * size)


def _descriptor(
    handle: Handle, problem: SpmmProblem, size: int, ell_columns: int, arrays: tuple[Buffer, Buffer]
) -> ctypes.c_void_p:
    descriptor, long = ctypes.c_void_p(), ctypes.c_int64
    checked(
        handle.library, "cusparseCreateBlockedEll", ctypes.byref(descriptor),
        *map(long, (problem.m, problem.k, size, ell_columns)), *(ctypes.c_void_p(a.address) for a in arrays),
        cusparse.INDEX_32I, cusparse.BASE_ZERO, cusparse.DATA_TYPE[problem.dtype],
    )  # fmt: skip
    return descriptor


BASELINE = CusparseBlockedEll()
