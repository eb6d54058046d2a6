"""Shared parts of the families of spmm that copy B and C by TMA and multiply on warpgroups' tensor cores."""

from __future__ import annotations

from collections.abc import Iterator

from sparsegen.kernels.base import Constraint
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.copied_ring import MOST_ROWS, PIECE
from sparsegen.kernels.spmm.block_tiles import whole_chunks
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.operators import DType, Layout, SpmmProblem


def copied_scope(problem: SpmmProblem) -> Iterator[Constraint]:
    """Yield what TMA and warpgroups' products ask of a problem."""
    yield one_batch_element(problem)
    yield Constraint(problem.dtype is not DType.FLOAT32, "warpgroups multiply 16-bit elements")
    yield Constraint(problem.k > 0, "A has columns")
    yield Constraint(problem.m <= MOST_ROWS, f"C has at most {MOST_ROWS} rows (m = {problem.m})")
    yield whole_chunks(problem)


def copied_map(problem: SpmmProblem, name: str, box_rows: int) -> TensorMap:
    """Returns the tensor map of B or C: boxes of 64 elements along its contiguous direction, ``box_rows`` across it."""
    rows, columns = {"b": (problem.k, problem.n), "c": (problem.m, problem.n)}[name]
    sizes = (rows, columns) if problem.layout is Layout.COLUMN else (columns, rows)
    return TensorMap(
        array=name,
        dtype=problem.dtype,
        sizes=sizes,
        strides=(sizes[0] * problem.dtype.itemsize,),
        box=(PIECE, box_rows),
        swizzle=Swizzle.BYTES_128,
    )
