"""Fitted costs of `uspmm_vec`, of which its predicted time is made."""

from __future__ import annotations

from typing import NamedTuple

from sparsegen.kernels.spmm.gather_time import by_dtype


class Costs(NamedTuple):
    """Fitted costs of the parts of the time; in a multiprocessor's cycles unless stated.

    Attributes:
        start_us: microseconds of the kernel's start.
        product: cost of a product.
        line: cost of a line of global memory that a warp gathers from; of a row-major B a set of threads has one for
            each of its chunks.
        unaligned: factor of a product's cost if gathered elements come one by one.
        unaligned_byte: cost of a byte of a tile of B that is loaded so, for each of the warps that load it together.
        byte: likewise, of any tile.
        step, gathered_step: cost of a warp's step to the next load of A, which waits for the data of the one before.
        spilling: further cost of a step, and of a row with a rest, by the share of registers that there are too few.
        sum: cost of a sum that warps with the same rows add up.
        rest: cost of a step through the longest row's nonzeros beyond the ELL width.
        rest_row: cost of a row with a rest, which all sets of its warp share, one such row after the other.
        rest_sum: cost to hand on one of its sums, for each thread.
        move: multiples of the memory's time; and ``a``, of the L2's for A, which comes again for each tile.
    """

    start_us: float
    product: float
    line: float
    unaligned: float
    unaligned_byte: float
    byte: float
    step: float
    gathered_step: float
    spilling: float
    sum: float
    rest: float
    rest_row: float
    rest_sum: float
    move: float
    a: float


COSTS = by_dtype(  # of 16-bit elements, of float32
    Costs,
    start_us=(1.47, 1.56),
    product=(0.022, 0.037),
    line=(0.335, 0.454),
    unaligned=(0.248, 0.103),
    unaligned_byte=(4.11, 1.07),
    byte=(1.20, 1.33),
    step=(153.0, 0.0),
    gathered_step=(579.0, 305.0),
    spilling=(6280.0, 3810.0),
    sum=(0.117, 0.129),
    rest=(399.0, 303.0),
    rest_row=(439.0, 793.0),
    rest_sum=(0.0158, 0.0272),
    move=(0.515, 0.378),
    a=(0.087, 0.386),
)
