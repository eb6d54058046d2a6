"""PyTorch's Triton product of block compressed sparse rows, its parameters tuned here.

PyTorch ships parameters for another GPU (`torch.sparse._triton_ops_meta`); those that matter are searched here in a
small grid, within a time limit, and every one is timed by the common protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparsegen.bench.baseline.baseline import Implementation, Stopwatch
from sparsegen.bench.baseline.blocks import NO_BLOCKS, block_sizes, cut, has_blocks
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, TorchBaseline, import_torch, nbytes, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, Problem, SpmmProblem

# Columns of B per program, warps, stages; the likeliest first. Tiles of 32 columns, and of 256 with four warps or other
# than three stages, are left out: they were never the fastest.
METAS = (
    (64, 4, 3),
    (128, 4, 3),
    (256, 8, 3),
    (64, 4, 2),
    (128, 4, 2),
    (64, 4, 4),
    (128, 4, 4),
    (64, 8, 3),
    (128, 8, 3),
)
GROUP_ROWS = 4
SECONDS = 30.0  # limit for the row's compiles, about a second each; the rest is left out
SIZES_TRIED = 3
SMALLEST = 16  # never the fastest where larger blocks are as full


class TorchBsr(TorchBaseline):
    name, kind = "torch-bsr", Kind.SPARSE
    packages = ("triton",)
    operators = (SpmmProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, SpmmProblem):
            return "it computes spmm"
        if problem.dtype is DType.FLOAT32:
            return "its sums of float32 products are float64, which tensor cores do not have"
        if problem.layout is Layout.COLUMN:
            return "it takes B row-major"
        if problem.n < 16:
            return "its tiles have 16 columns at the least"
        return None if has_blocks(features) else NO_BLOCKS

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        deadline = time.monotonic() + SECONDS
        b = to_tensor(bench.operand("b"), bench.problem.dtype)
        prepared = [_Prepared(bench, size, b) for size in sizes_tried(block_sizes(bench.matrix))]
        for meta in METAS:
            for one in prepared:
                if time.monotonic() > deadline:
                    return
                implementation = one.implementation(*meta)
                if implementation is not None:
                    yield implementation


def sizes_tried(sizes: Sequence[int]) -> list[int]:
    """Sizes of blocks that are full enough, the fullest first: larger ones may win with some zeros in them."""
    return [size for size in sizes if size > SMALLEST or size == sizes[0]][:SIZES_TRIED]


class _Prepared:
    """The matrix in blocks of one size."""

    def __init__(self, bench: Workbench, size: int, b: Any) -> None:
        torch, problem, matrix = import_torch(), bench.problem_as(SpmmProblem), bench.matrix
        watch = Stopwatch()
        blocks = cut(matrix, size)
        parts = (
            to_tensor(blocks.offsets),
            to_tensor(blocks.columns),
            to_tensor(problem.dtype.to_storage(blocks.values), problem.dtype),
        )
        self._matrix = torch.sparse_bsr_tensor(*parts, size=(problem.m, problem.k), check_invariants=False)
        torch.cuda.synchronize()
        self._preparation_ms = watch.lap()
        self._memory = nbytes(*parts)
        self._size, self._b, self._n = size, b, problem.n
        self._result = TensorResult(bench, (problem.m, problem.n))

    def implementation(self, tile: int, warps: int, stages: int) -> Implementation | None:
        """Compiled and run once; None where the kernel cannot be had so."""
        if tile > self._n or self._n % tile or self._size * tile < 32 * 16 * (warps // 4):
            return None
        from torch.sparse._triton_ops import bsr_dense_addmm

        meta = {
            "SPLIT_N": self._n // tile,
            "GROUP_SIZE_ROW": GROUP_ROWS,
            "num_warps": warps,
            "num_stages": stages,
        }
        out = self._result.tensor

        def run() -> None:
            bsr_dense_addmm(out, self._matrix, self._b, beta=0, out=out, meta=meta)

        try:
            run()
            import_torch().cuda.synchronize()
        except Exception as error:  # out of shared memory, a tile that Triton does not compile
            if "CUDA error" in str(error):
                raise
            return None
        return Implementation(
            f"blocks of {self._size}, tile {tile}, {warps} warps, {stages} stages",
            run,
            self._result.clear,
            self._result.read,
            self._preparation_ms,
            self._memory,
        )


BASELINES = (TorchBsr(),)
