"""cuSPARSE's generic SpMM on CSR: every algorithm, B and C row-major and column-major."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator

import numpy as np

from sparsegen.baselines import Call
from sparsegen.baselines.libraries import VendorError, checked, find_library
from sparsegen.family import Array
from sparsegen.formats import CsrMatrix
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.runtime import CudaExecutor

logger = logging.getLogger(__name__)

DATA_TYPE = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}  # cudaDataType
INDEX_32I = 2
COLUMN_ORDER, ROW_ORDER = 1, 2
NO_TRANSPOSE = 0
ALGORITHMS = {"default": 0, "csr_alg1": 4, "csr_alg2": 6, "csr_alg3": 12}


def calls(executor: CudaExecutor, matrix: CsrMatrix, problem: SpmmProblem, b: Array) -> Iterator[Call]:
    """Each algorithm with each layout that it supports, preprocessed."""
    library = find_library("cusparse")
    handle = ctypes.c_void_p()
    checked(library, "cusparseCreate", ctypes.byref(handle))
    number = ctypes.c_int()
    checked(library, "cusparseGetVersion", handle, ctypes.byref(number))
    m, k, n = problem.m, problem.k, problem.n
    kind = DATA_TYPE[problem.dtype]
    sparse = [
        executor.upload(array)
        for array in (matrix.row_offsets, matrix.column_indices, problem.dtype.to_storage(matrix.values))
    ]
    long, pointer = ctypes.c_int64, ctypes.c_void_p

    def csr_descriptor() -> ctypes.c_void_p:
        """A descriptor of A for one way alone: preprocessing keeps its findings there, and a second undoes them."""
        descriptor = ctypes.c_void_p()
        checked(
            library, "cusparseCreateCsr", ctypes.byref(descriptor), long(m), long(k), long(matrix.nnz),
            *(pointer(buffer.address) for buffer in sparse), INDEX_32I, INDEX_32I, 0, kind,
        )  # fmt: skip
        return descriptor

    rows = b if problem.layout is Layout.ROW else b.T
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    c_buffer = executor.allocate(problem.result.nbytes)
    for order, name in ((ROW_ORDER, "row"), (COLUMN_ORDER, "column")):
        b_buffer = executor.upload(np.ascontiguousarray(rows if order == ROW_ORDER else rows.T))
        dense = []
        for height, buffer in ((k, b_buffer), (m, c_buffer)):
            descriptor = ctypes.c_void_p()
            leading = n if order == ROW_ORDER else height
            checked(
                library, "cusparseCreateDnMat", ctypes.byref(descriptor), long(height), long(n), long(leading),
                pointer(buffer.address), kind, order,
            )  # fmt: skip
            dense.append(descriptor)
        for algorithm, code in ALGORITHMS.items():
            arguments = (
                handle, NO_TRANSPOSE, NO_TRANSPOSE, ctypes.byref(one), csr_descriptor(), dense[0],
                ctypes.byref(zero), dense[1], DATA_TYPE[DType.FLOAT32], code,
            )  # fmt: skip
            size = ctypes.c_size_t()
            try:
                checked(library, "cusparseSpMM_bufferSize", *arguments, ctypes.byref(size))
                workspace = executor.allocate(size.value)
                checked(library, "cusparseSpMM_preprocess", *arguments, pointer(workspace.address))
                checked(library, "cusparseSpMM", *arguments, pointer(workspace.address))
            except VendorError as error:
                logger.info("cuSPARSE %s, %s-major: %s", algorithm, name, error)
                continue

            def run(
                arguments: tuple[object, ...] = (*arguments, pointer(workspace.address)),
                keep: object = (workspace, b_buffer, c_buffer, sparse),
            ) -> None:
                checked(library, "cusparseSpMM", *arguments)

            yield Call(
                contender="cusparse",
                version=f"cuSPARSE {number.value}",
                detail=f"CSR {algorithm}, {name}-major",
                run=run,
                result=c_buffer,
                columns=order == COLUMN_ORDER,
            )
