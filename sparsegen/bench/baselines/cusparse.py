"""cuSPARSE's SpMM: CSR and COO by their algorithms, and blocks as Blocked-ELL and BSR."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.bench.baseline.baseline import Baseline, Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.blocks import NO_BLOCKS, Blocks, block_sizes, cut, has_blocks
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._vendor import cuda, dense_orders, implementations_of, require_library
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.measure.baselines import cusparse
from sparsegen.measure.baselines.libraries import Handle, checked, find_library
from sparsegen.operators import Problem, SpmmProblem
from sparsegen.system.numpy_types import Array

BLOCKED_ELL_ALGORITHMS = {"alg1": 13}
BSR_ALGORITHMS = {"alg1": 14}
SIZES_TRIED = 3


class CusparseCsr(Baseline):
    name, kind = "cusparse-csr", Kind.SPARSE
    operators: tuple[type[Problem], ...] = (SpmmProblem,)

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


class CusparseCoo(CusparseCsr):
    name = "cusparse-coo"

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        handle, problem, matrix = cusparse.open_handle(), bench.problem_as(SpmmProblem), bench.matrix
        b = dense_orders(bench)
        watch = Stopwatch()
        rows = np.repeat(np.arange(problem.m, dtype=np.int32), np.diff(matrix.row_offsets))
        arrays = [bench.executor.upload(a) for a in (rows, matrix.column_indices, bench.encoded)]

        def descriptor() -> ctypes.c_void_p:
            made, long = ctypes.c_void_p(), ctypes.c_int64
            checked(
                handle.library, "cusparseCreateCoo", ctypes.byref(made),
                *map(long, (problem.m, problem.k, matrix.nnz)), *(ctypes.c_void_p(a.address) for a in arrays),
                cusparse.INDEX_32I, cusparse.BASE_ZERO, cusparse.DATA_TYPE[problem.dtype],
            )  # fmt: skip
            return made

        calls = cusparse.products(
            cuda(bench), handle, descriptor, problem, b, cusparse.COO_ALGORITHMS,
            format_name="COO", stored_bytes=sum(a.nbytes for a in arrays), keep=arrays,
        )  # fmt: skip
        yield from implementations_of(bench, calls, watch.lap())


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
            cuda(bench), handle, descriptor, problem, b, BLOCKED_ELL_ALGORITHMS,
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


class CusparseBsr(CusparseBlockedEll):
    name = "cusparse-bsr"

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        if not hasattr(find_library("cusparse"), "cusparseCreateBsr"):
            raise UnsupportedError("this cuSPARSE has no SpMM on BSR; 12.5 and newer do")
        return super().implementations(bench)

    def implementations_of_size(
        self, bench: Workbench, handle: Handle, size: int, b: Callable[[int], Buffer]
    ) -> Iterator[Implementation]:
        problem, matrix, long = bench.problem_as(SpmmProblem), bench.matrix, ctypes.c_int64
        watch = Stopwatch()
        blocks = cut(matrix, size)
        sizes = (problem.m // size, problem.k // size, blocks.columns.size, size, size)
        arrays = [
            bench.executor.upload(a)
            for a in (blocks.offsets, blocks.columns, problem.dtype.to_storage(blocks.values))
        ]

        def descriptor() -> ctypes.c_void_p:
            made = ctypes.c_void_p()
            checked(
                handle.library, "cusparseCreateBsr", ctypes.byref(made), *map(long, sizes),
                *(ctypes.c_void_p(a.address) for a in arrays), cusparse.INDEX_32I, cusparse.INDEX_32I,
                cusparse.BASE_ZERO, cusparse.DATA_TYPE[problem.dtype], cusparse.ROW_ORDER,
            )  # fmt: skip
            return made

        calls = cusparse.products(
            cuda(bench), handle, descriptor, problem, b, BSR_ALGORITHMS,
            format_name=f"BSR {size}", stored_bytes=sum(a.nbytes for a in arrays), keep=arrays,
        )  # fmt: skip
        yield from implementations_of(bench, calls, watch.lap())


BASELINES = (CusparseCsr(), CusparseCoo(), CusparseBlockedEll(), CusparseBsr())
