"""cuSPARSE's SpMM on block compressed sparse rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

from sparsegen.backends.executor import Buffer
from sparsegen.bench.baseline.baseline import Implementation, Stopwatch, UnsupportedError
from sparsegen.bench.baseline.blocks import cut
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._vendor import cuda, implementations_of
from sparsegen.bench.baselines.cusparse_blocked_ell import CusparseBlockedEll
from sparsegen.measure.baselines import cusparse
from sparsegen.measure.baselines.libraries import Handle, checked, find_library
from sparsegen.operators import SpmmProblem

ALGORITHMS = {"alg1": 14}


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
            cuda(bench), handle, descriptor, problem, b, ALGORITHMS,
            format_name=f"BSR {size}", stored_bytes=sum(a.nbytes for a in arrays), keep=arrays,
        )  # fmt: skip
        yield from implementations_of(bench, calls, watch.lap())


BASELINE = CusparseBsr()
