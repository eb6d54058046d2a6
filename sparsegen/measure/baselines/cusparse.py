"""cuSPARSE's generic SpMM: every algorithm of a format, B and C row-major and column-major."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.backends.executor import Buffer
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines import Call
from sparsegen.measure.baselines.libraries import Handle, VendorError, checked, find_library
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.numpy_types import Array

logger = logging.getLogger(__name__)

DATA_TYPE = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}  # cudaDataType
INDEX_32I, BASE_ZERO = 2, 0
COLUMN_ORDER, ROW_ORDER = 1, 2
NO_TRANSPOSE = 0
CSR_ALGORITHMS = {"default": 0, "csr_alg1": 4, "csr_alg2": 6, "csr_alg3": 12}
COO_ALGORITHMS = {"default": 0, "coo_alg1": 1, "coo_alg2": 2, "coo_alg3": 3, "coo_alg4": 5}

Descriptor = Callable[[], ctypes.c_void_p]  # makes a new descriptor of the sparse matrix


def open_handle() -> Handle:
    """A cuSPARSE handle in the current context.

    Raises:
        LibraryUnavailableError: cuSPARSE is not installed.
    """
    return Handle(find_library("cusparse"), "cusparseCreate", "cusparseDestroy")


def version(handle: Handle) -> str:
    """The library's version as one number, like 12603."""
    return handle.version("cusparseGetVersion")


def dense_descriptor(
    handle: Handle, shape: tuple[int, int], order: int, buffer: Buffer, dtype: DType
) -> ctypes.c_void_p:
    """A dense matrix, packed in its order."""
    descriptor, long = ctypes.c_void_p(), ctypes.c_int64
    leading = shape[1] if order == ROW_ORDER else shape[0]
    checked(
        handle.library, "cusparseCreateDnMat", ctypes.byref(descriptor), long(shape[0]), long(shape[1]),
        long(leading), ctypes.c_void_p(buffer.address), DATA_TYPE[dtype], order,
    )  # fmt: skip
    return descriptor


def csr_descriptor(
    handle: Handle, shape: tuple[int, int], arrays: tuple[Buffer, Buffer, Buffer], nnz: int, dtype: DType
) -> ctypes.c_void_p:
    """A sparse matrix of row offsets, column indices and values."""
    descriptor, long = ctypes.c_void_p(), ctypes.c_int64
    checked(
        handle.library, "cusparseCreateCsr", ctypes.byref(descriptor), *map(long, (*shape, nnz)),
        *(ctypes.c_void_p(buffer.address) for buffer in arrays), INDEX_32I, INDEX_32I, BASE_ZERO, DATA_TYPE[dtype],
    )  # fmt: skip
    return descriptor


def calls(executor: CudaExecutor, matrix: CsrMatrix, problem: SpmmProblem, b: Array) -> Iterator[Call]:
    """A in compressed sparse rows: each algorithm with each layout that it supports, preprocessed."""
    offsets, columns = executor.upload(matrix.row_offsets), executor.upload(matrix.column_indices)
    values = executor.upload(problem.dtype.to_storage(matrix.values))
    rows = b if problem.layout is Layout.ROW else b.T

    def dense(order: int) -> Buffer:
        return executor.upload(np.ascontiguousarray(rows if order == ROW_ORDER else rows.T))

    return csr_calls(executor, problem, (offsets, columns, values), matrix.nnz, dense)


def csr_calls(
    executor: CudaExecutor,
    problem: SpmmProblem,
    arrays: tuple[Buffer, Buffer, Buffer],
    nnz: int,
    b: Callable[[int], Buffer],
) -> Iterator[Call]:
    """The same of arrays in device memory; ``b`` gives B in an order."""
    handle = open_handle()

    def descriptor() -> ctypes.c_void_p:
        return csr_descriptor(handle, (problem.m, problem.k), arrays, nnz, problem.dtype)

    stored = sum(buffer.nbytes for buffer in arrays)
    yield from products(
        executor, handle, descriptor, problem, b, CSR_ALGORITHMS, format_name="CSR", stored_bytes=stored,
        keep=arrays,
    )  # fmt: skip


def product(
    executor: CudaExecutor,
    handle: Handle,
    sparse: ctypes.c_void_p,
    dense_b: ctypes.c_void_p,
    dense_c: ctypes.c_void_p,
    code: int,
) -> tuple[Callable[[], None], Buffer]:
    """One call of cusparseSpMM, preprocessed, and its workspace, which it keeps.

    Args:
        sparse, dense_b, dense_c: descriptors; that of the sparse matrix is for this call alone, whose findings it has.
        code: number of the algorithm.

    Raises:
        VendorError: cuSPARSE does not compute this so.
    """
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments = (
        handle.value, NO_TRANSPOSE, NO_TRANSPOSE, ctypes.byref(one), sparse, dense_b, ctypes.byref(zero), dense_c,
        DATA_TYPE[DType.FLOAT32], code,
    )  # fmt: skip
    size = ctypes.c_size_t()
    checked(handle.library, "cusparseSpMM_bufferSize", *arguments, ctypes.byref(size))
    workspace = executor.allocate(size.value)
    at_work = (*arguments, ctypes.c_void_p(workspace.address))
    checked(handle.library, "cusparseSpMM_preprocess", *at_work)
    checked(handle.library, "cusparseSpMM", *at_work)

    def run(kept: object = (handle, workspace)) -> None:
        checked(handle.library, "cusparseSpMM", *at_work)

    return run, workspace


def products(
    executor: CudaExecutor,
    handle: Handle,
    descriptor: Descriptor,
    problem: SpmmProblem,
    b: Callable[[int], Buffer],
    algorithms: Mapping[str, int],
    *,
    format_name: str,
    stored_bytes: int,
    keep: object,
) -> Iterator[Call]:
    """Each algorithm with each layout of B and C that it supports.

    Args:
        descriptor: called for each implementation: preprocessing keeps its findings there, and a second undoes them.
        b: gives B, k × n, in an order.
        stored_bytes: bytes of the sparse matrix on the device.
        keep: objects that must live as long as the calls.
    """
    m, k, n, dtype = problem.m, problem.k, problem.n, problem.dtype
    c_buffer = executor.allocate(problem.result(0).nbytes)
    for order, name in ((ROW_ORDER, "row"), (COLUMN_ORDER, "column")):
        b_buffer = b(order)
        dense_b = dense_descriptor(handle, (k, n), order, b_buffer, dtype)
        dense_c = dense_descriptor(handle, (m, n), order, c_buffer, dtype)
        for algorithm, code in algorithms.items():
            try:
                call, workspace = product(executor, handle, descriptor(), dense_b, dense_c, code)
            except VendorError as error:
                logger.info("cuSPARSE %s %s, %s-major: %s", format_name, algorithm, name, error)
                continue

            def run(call: Callable[[], None] = call, keep: object = (b_buffer, c_buffer, keep)) -> None:
                call()

            yield Call(
                baseline="cusparse",
                version=f"cuSPARSE {version(handle)}",
                detail=f"{format_name} {algorithm}, {name}-major",
                run=run,
                result=c_buffer,
                columns=order == COLUMN_ORDER,
                memory_bytes=stored_bytes + workspace.nbytes,
            )
