"""The gradient of a softmax of CSR rows, by a subwarp, a warp or a block each."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.softmax.row_wise import RowConfig, RowWise
from sparsegen.operators import SoftmaxBackwardProblem


@dataclass(frozen=True)
class RowSoftmaxBackwardConfig(RowConfig):
    """One point of the tuning space of `row_softmax_backward`."""


class RowSoftmaxBackward(RowWise[SoftmaxBackwardProblem, RowSoftmaxBackwardConfig]):
    """One pass for a row's sum of Y · dY and one for the result; the second finds in registers what fits there."""

    name = "row_softmax_backward"
    summary = "gradient of a softmax of CSR rows, by a subwarp, a warp or a block each"
    source = "the softmax's Jacobian times a vector, in the manner of row_softmax; sparsegen's own"
    arrays_kept = 2
    start_us, sorted_us = 1.5, 0.5
    value_cycles, end_cycles = 8.7, 2.5

    def heuristic_vector(self, problem: SoftmaxBackwardProblem) -> int:
        """16 bytes in float32; single values in 16 bits.

        Rows begin anywhere, and the two arrays of a row have twice the ends that are read value by value: vectors
        of 8 took 1.1 to 1.26 times as long on an H100.
        """
        return super().heuristic_vector(problem) if problem.dtype.itemsize == 4 else 1


FAMILY = RowSoftmaxBackward()
