"""Dense cuBLAS: A with its zeros, stored row-major and column-major."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

from sparsegen.baselines import Call
from sparsegen.baselines.libraries import checked, find_library
from sparsegen.family import Array
from sparsegen.formats import CsrMatrix
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.runtime import CudaExecutor

DATA_TYPE = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}  # cudaDataType
COMPUTE_32F = 68
NO_TRANSPOSE, TRANSPOSE = 0, 1
DEFAULT_ALGORITHM = -1


def calls(executor: CudaExecutor, matrix: CsrMatrix, problem: SpmmProblem, b: Array) -> Iterator[Call]:
    """The product with both storage orders of A; B and C in the problem's layout."""
    library = find_library("cublas")
    handle = ctypes.c_void_p()
    checked(library, "cublasCreate_v2", ctypes.byref(handle))
    number = ctypes.c_int()
    checked(library, "cublasGetVersion_v2", handle, ctypes.byref(number))
    m, k, n = problem.m, problem.k, problem.n
    dense = problem.dtype.to_storage(matrix.to_scipy().toarray())
    kind = DATA_TYPE[problem.dtype]
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    pointer = ctypes.c_void_p
    b_buffer, c_buffer = executor.upload(b), executor.allocate(problem.result.nbytes)
    for a_rows in (True, False):
        a_buffer = executor.upload(dense if a_rows else np.ascontiguousarray(dense.T))
        a = (pointer(a_buffer.address), kind, k if a_rows else m)
        if problem.layout is Layout.ROW:
            # cuBLAS is column-major: C^T = B^T A^T.
            shape, left, right, ld_c = (n, m, k), (pointer(b_buffer.address), kind, n), a, n
            operations = (NO_TRANSPOSE, NO_TRANSPOSE if a_rows else TRANSPOSE)
        else:
            shape, left, right, ld_c = (m, n, k), a, (pointer(b_buffer.address), kind, k), m
            operations = (TRANSPOSE if a_rows else NO_TRANSPOSE, NO_TRANSPOSE)
        arguments = (
            handle, *operations, *shape, ctypes.byref(one), *left, *right, ctypes.byref(zero),
            pointer(c_buffer.address), kind, ld_c, COMPUTE_32F, DEFAULT_ALGORITHM,
        )  # fmt: skip

        def run(
            arguments: tuple[object, ...] = arguments, keep: object = (a_buffer, b_buffer, c_buffer)
        ) -> None:
            checked(library, "cublasGemmEx", *arguments)

        yield Call(
            contender="cublas",
            version=f"cuBLAS {number.value}",
            detail=f"dense {problem.dtype}, A {'row' if a_rows else 'column'}-major",
            run=run,
            result=c_buffer,
            columns=problem.layout is Layout.COLUMN,
        )
