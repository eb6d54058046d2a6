"""cuSPARSE's SpMM on block compressed sparse rows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

from sparsegen.baselines import cusparse
from sparsegen.baselines.libraries import Handle, checked, find_library
from sparsegen.bench.blocks import Blocks, block_sizes, cut
from sparsegen.bench.contender import UnsupportedError, Way
from sparsegen.bench.contenders._vendor import cuda, ways_of
from sparsegen.bench.contenders.cusparse_blocked_ell import CusparseBlockedEll
from sparsegen.bench.workbench import Workbench

ALGORITHMS = {"alg1": 14}
SIZES_TRIED = 3


class CusparseBsr(CusparseBlockedEll):
    name = "cusparse-bsr"

    def ways(self, bench: Workbench) -> Iterator[Way]:
        if not hasattr(find_library("cusparse"), "cusparseCreateBsr"):
            raise UnsupportedError("this cuSPARSE has no SpMM on BSR; 12.5 and newer do")
        handle = cusparse.open_handle()
        for size in block_sizes(bench.matrix)[:SIZES_TRIED]:
            yield from self._bsr_ways(bench, handle, cut(bench.matrix, size))

    def _bsr_ways(self, bench: Workbench, handle: Handle, blocks: Blocks) -> Iterator[Way]:
        task, long = bench.task, ctypes.c_int64
        sizes = (task.m // blocks.size, task.k // blocks.size, blocks.columns.size, blocks.size, blocks.size)
        arrays = [
            bench.executor.upload(a)
            for a in (blocks.offsets, blocks.columns, task.dtype.to_storage(blocks.values))
        ]

        def descriptor() -> ctypes.c_void_p:
            made = ctypes.c_void_p()
            checked(
                handle.library, "cusparseCreateBsr", ctypes.byref(made), *map(long, sizes),
                *(ctypes.c_void_p(a.address) for a in arrays), cusparse.INDEX_32I, cusparse.INDEX_32I,
                cusparse.BASE_ZERO, cusparse.DATA_TYPE[task.dtype], cusparse.ROW_ORDER,
            )  # fmt: skip
            return made

        calls = cusparse.products(
            cuda(bench), handle, descriptor, task.problem, bench.operand("b"), ALGORITHMS,
            format_name=f"BSR {blocks.size}", stored_bytes=sum(a.nbytes for a in arrays), keep=arrays,
        )  # fmt: skip
        return ways_of(bench, calls)


CONTENDER = CusparseBsr()
