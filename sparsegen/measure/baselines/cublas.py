"""Dense cuBLAS: A with its zeros, stored row-major and column-major."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sparsegen.backends.cuda.runtime import CudaExecutor
from sparsegen.backends.executor import Buffer
from sparsegen.kernels.masked.side import Side
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baselines import Call
from sparsegen.measure.baselines.libraries import Handle, checked, find_library
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.device_memory import Address
from sparsegen.system.numpy_types import Array

DATA_TYPE = {DType.FLOAT32: 0, DType.FLOAT16: 2, DType.BFLOAT16: 14}  # cudaDataType
NO_TRANSPOSE, TRANSPOSE = 0, 1
DEFAULT_ALGORITHM = -1

DRAWN = (1 << 20) + 1  # random elements of a large matrix; odd, so that its rows differ


class Compute(IntEnum):
    """cublasComputeType_t: sums in float32, and of float32 data the products exact or in TF32."""

    FLOAT32 = 68
    TF32 = 77


def open_handle() -> Handle:
    """A cuBLAS handle in the current context.

    Raises:
        LibraryUnavailableError: cuBLAS is not installed.
    """
    return Handle(find_library("cublas"), "cublasCreate_v2", "cublasDestroy_v2")


def version(handle: Handle) -> str:
    """The library's version as one number, like 130001."""
    return handle.version("cublasGetVersion_v2")


def product(
    handle: Handle,
    dtype: DType,
    operations: tuple[int, int],
    shape: tuple[int, int, int],
    left: tuple[Buffer, int],
    right: tuple[Buffer, int],
    result: tuple[Buffer, int],
    compute: Compute = Compute.FLOAT32,
    scale: float = 1.0,
) -> Callable[[], None]:
    """A call of cublasGemmEx in its own, column-major terms.

    Args:
        operations: operations on the left and the right factor.
        shape: m, n, k.
        left, right, result: buffer and leading dimension.
        scale: factor on the product.
    """
    kind = DATA_TYPE[dtype]
    alpha, zero = ctypes.c_float(scale), ctypes.c_float(0)
    pointer = ctypes.c_void_p
    factors = [
        value for buffer, leading in (left, right) for value in (pointer(buffer.address), kind, leading)
    ]
    arguments = (
        handle.value, *operations, *shape, ctypes.byref(alpha), *factors, ctypes.byref(zero),
        pointer(result[0].address), kind, result[1], int(compute), DEFAULT_ALGORITHM,
    )  # fmt: skip
    keep = (handle, left[0], right[0], result[0])

    def run(kept: object = keep) -> None:
        checked(handle.library, "cublasGemmEx", *arguments)

    return run


@dataclass(frozen=True, slots=True)
class ByColumns:
    """A product in the column-major terms of cuBLAS and cuBLASLt.

    Attributes:
        operations: operations on the left and the right factor.
        shape: m, n, k.
        left, right, result: buffer and leading dimension.
    """

    operations: tuple[int, int]
    shape: tuple[int, int, int]
    left: tuple[Buffer, int]
    right: tuple[Buffer, int]
    result: tuple[Buffer, int]

    @classmethod
    def of(cls, side: Side, a: Buffer, b: Buffer, result: Buffer) -> ByColumns:
        """The whole dense product of what a product with a mask multiplies; ``side``: how these are stored."""
        rows, columns, inner = side.rows, side.columns, side.inner
        # A matrix stored row by row is the transpose to cuBLAS.
        of_a = (a, inner if side.a_by_inner else rows)
        of_b = (b, inner if side.b_by_inner else columns)
        a_operations = (NO_TRANSPOSE, TRANSPOSE) if side.a_by_inner else (TRANSPOSE, NO_TRANSPOSE)
        b_operations = (TRANSPOSE, NO_TRANSPOSE) if side.b_by_inner else (NO_TRANSPOSE, TRANSPOSE)
        if side.by_columns:
            operations = a_operations[1], b_operations[1]
            return cls(operations, (rows, columns, inner), of_a, of_b, (result, rows))
        operations = b_operations[0], a_operations[0]
        return cls(operations, (columns, rows, inner), of_b, of_a, (result, columns))


def product_of(
    handle: Handle,
    dtype: DType,
    whole: ByColumns,
    compute: Compute = Compute.FLOAT32,
    scale: float = 1.0,
) -> Callable[[], None]:
    """A call of cublasGemmEx for a product that is described; ``scale``: what it is multiplied by."""
    w = whole
    return product(handle, dtype, w.operations, w.shape, w.left, w.right, w.result, compute, scale)


def calls(
    executor: CudaExecutor,
    matrix: CsrMatrix,
    problem: SpmmProblem,
    b: Array,
) -> Iterator[Call]:
    """The product with both storage orders of A; B and C in the problem's layout."""
    dense = problem.dtype.to_storage(matrix.to_dense())

    def stored(by_rows: bool) -> Buffer:
        return executor.upload(dense if by_rows else np.ascontiguousarray(dense.T))

    return products(executor, stored, problem, executor.upload(b))


def products(
    executor: CudaExecutor,
    stored: Callable[[bool], Buffer],
    problem: SpmmProblem,
    b: Buffer,
    compute: Compute = Compute.FLOAT32,
) -> Iterator[Call]:
    """The same of operands in device memory: ``stored`` gives A row-major (True) and column-major."""
    handle = open_handle()
    m, k, n = problem.m, problem.k, problem.n
    c_buffer = executor.allocate(problem.result(0).nbytes)
    for a_rows in (True, False):
        a_buffer = stored(a_rows)
        a = (a_buffer, k if a_rows else m)
        if problem.layout is Layout.ROW:
            # cuBLAS is column-major: C^T = B^T A^T.
            shape, left, right, ld_c = (n, m, k), (b, n), a, n
            operations = (NO_TRANSPOSE, NO_TRANSPOSE if a_rows else TRANSPOSE)
        else:
            shape, left, right, ld_c = (m, n, k), a, (b, k), m
            operations = (TRANSPOSE if a_rows else NO_TRANSPOSE, NO_TRANSPOSE)
        yield Call(
            baseline="cublas",
            version=f"cuBLAS {version(handle)}",
            detail=f"dense {problem.dtype}, A {'row' if a_rows else 'column'}-major",
            run=product(handle, problem.dtype, operations, shape, left, right, (c_buffer, ld_c), compute),
            result=c_buffer,
            columns=problem.layout is Layout.COLUMN,
            memory_bytes=a_buffer.nbytes,
        )


def square_products(executor: CudaExecutor, size: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Products of two random square matrices, one for each arithmetic, with its name.

    The elements repeat after a million: the host would take seconds to draw, round and even to repeat them all.
    """
    handle = open_handle()
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(min(size**2, DRAWN), dtype=np.float32) for _ in range(2)]
    for dtype in DType:
        left, right = (_repeated(executor, dtype.to_storage(part), size**2) for part in parts)
        result = executor.allocate(left.nbytes)
        arithmetics = {str(dtype): Compute.FLOAT32} | (
            {"tf32": Compute.TF32} if dtype is DType.FLOAT32 else {}
        )
        for name, compute in arithmetics.items():
            yield (
                name,
                product(
                    handle,
                    dtype,
                    (NO_TRANSPOSE, NO_TRANSPOSE),
                    (size, size, size),
                    (left, size),
                    (right, size),
                    (result, size),
                    compute,
                ),
            )


def _repeated(executor: CudaExecutor, part: Array, count: int) -> Buffer:
    """Fills ``count`` elements on the device with repetitions of an array."""
    buffer = executor.allocate(count * part.itemsize)
    for first in range(0, count, part.size):
        piece = part[: count - first]
        executor.overwrite(Address(buffer.address + first * part.itemsize, piece.nbytes), piece)
    return buffer
