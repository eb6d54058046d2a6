"""cuSPARSE's SDDMM, with B as it is stored and transposed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines.cusparse import CusparseCsr
from sparsegen.measure.baselines import cusparse
from sparsegen.measure.baselines.libraries import VendorError, checked, find_library
from sparsegen.operators import DType, SddmmProblem

DEFAULT_ALGORITHM = 0


class CusparseSddmm(CusparseCsr):
    name = "cusparse-sddmm"
    operators = (SddmmProblem,)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        refusals = []
        for order, name in ((cusparse.COLUMN_ORDER, "column"), (cusparse.ROW_ORDER, "row")):
            try:
                yield self._implementation(bench, order, name)
            except VendorError as error:
                refusals.append(f"B {name}-major: {error}")
        if len(refusals) == 2:
            raise UnsupportedError("; ".join(refusals))

    def _implementation(self, bench: Workbench, order: int, name: str) -> Implementation:
        problem, executor, matrix = bench.problem_as(SddmmProblem), bench.executor, bench.matrix
        handle, library = cusparse.open_handle(), find_library("cusparse")
        a = bench.upload("a")
        b = (
            bench.upload("b")
            if order == cusparse.COLUMN_ORDER
            else executor.upload(np.ascontiguousarray(bench.operand("b").T))
        )
        watch = Stopwatch()
        pattern = executor.upload(matrix.row_offsets), executor.upload(matrix.column_indices)
        result = bench.result()
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        shape = problem.matrix_shape
        arguments = (
            handle.value, cusparse.NO_TRANSPOSE, cusparse.NO_TRANSPOSE, ctypes.byref(one),
            cusparse.dense_descriptor(handle, (problem.m, problem.k), cusparse.ROW_ORDER, a, problem.dtype),
            cusparse.dense_descriptor(handle, (problem.k, problem.n), order, b, problem.dtype),
            ctypes.byref(zero),
            cusparse.csr_descriptor(handle, shape, (*pattern, result.buffer), matrix.nnz, problem.dtype),
            cusparse.DATA_TYPE[DType.FLOAT32], DEFAULT_ALGORITHM,
        )  # fmt: skip
        size = ctypes.c_size_t()
        checked(library, "cusparseSDDMM_bufferSize", *arguments, ctypes.byref(size))
        workspace = executor.allocate(size.value)
        space = ctypes.c_void_p(workspace.address)
        result.clear_to_zero()
        checked(library, "cusparseSDDMM_preprocess", *arguments, space)
        checked(library, "cusparseSDDMM", *arguments, space)

        def run(keep: object = (handle, pattern, a, b, workspace, one, zero)) -> None:
            checked(library, "cusparseSDDMM", *arguments, space)

        memory = sum(buffer.nbytes for buffer in (*pattern, workspace))
        return Implementation(f"B {name}-major", run, result.clear_to_zero, result.read, watch.lap(), memory)


BASELINES = (CusparseSddmm(),)
