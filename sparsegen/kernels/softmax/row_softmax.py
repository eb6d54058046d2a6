"""Softmax of CSR rows by a subwarp, a warp or a block each, with online normalisation of long rows."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.softmax.row_wise import RowConfig, RowWise
from sparsegen.operators import SoftmaxProblem


@dataclass(frozen=True)
class RowSoftmaxConfig(RowConfig):
    """One point of the tuning space of `row_softmax`."""


class RowSoftmax(RowWise[SoftmaxProblem, RowSoftmaxConfig]):
    """A row's largest value and its sum of powers are kept together and corrected as larger values come, so that a row
    that does not fit the registers is read twice, not three times.
    """

    name = "row_softmax"
    summary = "softmax of CSR rows, by a subwarp, a warp or a block each"
    source = "Milakov, Gimelshein: Online normalizer calculation for softmax, arXiv 1805.02867, section 3"
    arrays_kept = 1
    start_us, sorted_us = 3.2, 0.04
    value_cycles, end_cycles = 5.2, 2.5


FAMILY = RowSoftmax()
