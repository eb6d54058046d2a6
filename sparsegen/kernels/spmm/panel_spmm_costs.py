"""Fitted costs of `panel_spmm`, of which its predicted time is made."""

from __future__ import annotations

from typing import NamedTuple

from sparsegen.kernels.spmm.gather_time import by_dtype
from sparsegen.operators import DType


class Costs(NamedTuple):
    """Fitted costs of the parts of the time; in a multiprocessor's cycles unless stated.

    Attributes:
        start_us: microseconds of the kernel's start.
        product: cost of a product; and how much longer it takes ``apart``, where each thread of a phase reads a row of
            its own and meets others in a bank, and ``grouped``, for each further row that shares loads of B.
        load: cost of a load of A by a warp; and ``sum``, to hand a sum on between threads that share a row.
        nonzero: cost of a nonzero of the longest row in flight; and ``step``, of each load of A there.
        round: cost of a set of rows that follows another on its threads.
        panel: cost until all warps have gone on to the next panel.
        spilling: factor of additional work by the fraction of registers that a thread lacks.
        unaligned: multiples of the L2's time for a tile of B in single elements, and ``tile``, for any.
        a, b, c: multiples of the memory's time for the three matrices.
    """

    start_us: float
    product: float
    apart: float
    grouped: float
    load: float
    sum: float
    nonzero: float
    step: float
    round: float
    panel: float
    spilling: float
    unaligned: float
    tile: float
    a: float
    b: float
    c: float


ROW_MAJOR_COSTS = by_dtype(  # of 16-bit elements, of float32
    Costs,
    start_us=(1.36, 1.09),
    product=(0.0175, 0.0169),
    apart=(0.0080, 0.0165),
    grouped=(0.0128, 0.0013),
    load=(0.0, 3.93),
    sum=(1.38, 1.51),
    nonzero=(35.8, 23.5),
    step=(83.7, 118.0),
    round=(1160.0, 1300.0),
    panel=(1580.0, 815.0),
    spilling=(0.0, 0.0),
    unaligned=(3.04, 1.49),
    tile=(0.16, 0.17),
    a=(0.893, 0.328),
    b=(1.36, 1.33),
    c=(0.716, 0.429),
)
# Costs for a row-major C whose batch elements have values of their own, and for a column-major one.
OWN_VALUES = Costs(
    start_us=2.3,
    product=0.030,
    apart=0.0,
    grouped=0.0,
    load=6.2,
    sum=1.3,
    nonzero=49.0,
    step=0.0,
    round=0.0,
    panel=1240.0,
    spilling=5.3,
    unaligned=6.1,
    tile=0.0,
    a=0.61,
    b=1.57,
    c=0.0,
)
OWN_VALUES_HALF = OWN_VALUES._replace(product=0.0205)
OWN_VALUES_COSTS = {
    DType.FLOAT32: OWN_VALUES,
    DType.FLOAT16: OWN_VALUES_HALF,
    DType.BFLOAT16: OWN_VALUES_HALF,
}
COLUMN_MAJOR_COSTS = {
    dtype: costs._replace(nonzero=126.0, c=3.6) for dtype, costs in OWN_VALUES_COSTS.items()
}
