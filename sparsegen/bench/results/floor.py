"""The least time that the device allows for a problem."""

from __future__ import annotations

from sparsegen.bench.results.results import Floor, Rates
from sparsegen.operators import Problem


def floor_of(problem: Problem, nnz: int, rates: Rates | None, computed: float = 1.0) -> Floor:
    """The least time of a problem, of five digits: its fewest bytes and useful FLOP over the measured rates.

    Args:
        computed: the part of its FLOP that its operands need; see `Problem.computed_share`.
    """
    cost = problem.cost(nnz)
    flop = round(computed * cost.flop)
    if rates is None:
        return Floor(cost.bytes, flop, computed=computed)
    flop_rate = rates.flop_per_s_of(problem.multiplied)
    return Floor(
        cost.bytes,
        flop,
        memory_us=_rounded(cost.bytes / rates.copy_bytes_per_s * 1e6),
        compute_us=None if flop_rate is None else _rounded(flop / flop_rate * 1e6),
        computed=computed,
    )


def _rounded(us: float) -> float:
    return float(f"{us:.5g}")
