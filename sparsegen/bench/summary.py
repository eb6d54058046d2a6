"""Geometric means of a run's rows, for each suite and type. Computed from the rows, never stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsegen.bench.results import TUNED, UNTUNED, Cell, Row
from sparsegen.operators import DType


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and how many rows it is over; NaN over none."""

    value: float
    count: int


@dataclass(frozen=True, slots=True)
class SuiteSummary:
    """One suite in one dtype. Ratios are of times (below 1: the first is faster), means are geometric.

    Attributes:
        rows: how many the suite has here, whether timed or not.
        to_dense: our tuned winner over the dense product of the same type.
        to_best_sparse: our tuned winner over the fastest other sparse routine.
        untuned_to_tuned: plain dispatch over the tuned winner: the regret.
        best_sparse_to_dense: the fastest other sparse routine over dense.
        faster_than_dense: share of the rows that have both times in which the winner is faster.
        share_of_floor: mean of floor over the winner's time; 1 is the least time the device allows.
    """

    suite: str
    dtype: DType
    rows: int
    to_dense: Mean
    to_best_sparse: Mean
    untuned_to_tuned: Mean
    best_sparse_to_dense: Mean
    faster_than_dense: Mean
    share_of_floor: Mean


def summarize(rows: Iterable[Row]) -> list[SuiteSummary]:
    """One summary for each suite and dtype, in the order in which they first appear."""
    groups: dict[tuple[str, DType], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.dtype), []).append(row)
    return [_summary(suite, dtype, some) for (suite, dtype), some in groups.items()]


def _summary(suite: str, dtype: DType, rows: Sequence[Row]) -> SuiteSummary:
    tuned = [row.us(TUNED) for row in rows]
    untuned = [row.us(UNTUNED) for row in rows]
    dense = [_us(row.dense()) for row in rows]
    sparse = [_us(row.best_sparse()) for row in rows]
    to_dense = _ratios(tuned, dense)
    shares = _ratios([row.floor.us for row in rows], tuned)
    return SuiteSummary(
        suite=suite,
        dtype=dtype,
        rows=len(rows),
        to_dense=geometric(to_dense),
        to_best_sparse=geometric(_ratios(tuned, sparse)),
        untuned_to_tuned=geometric(_ratios(untuned, tuned)),
        best_sparse_to_dense=geometric(_ratios(sparse, dense)),
        faster_than_dense=arithmetic([float(ratio < 1) for ratio in to_dense]),
        share_of_floor=arithmetic(shares),
    )


def geometric(ratios: Sequence[float]) -> Mean:
    """The geometric mean of ratios above 0."""
    value = math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    return Mean(value, len(ratios))


def arithmetic(values: Sequence[float]) -> Mean:
    return Mean(math.fsum(values) / len(values) if values else math.nan, len(values))


def _us(cell: Cell | None) -> float | None:
    return None if cell is None or cell.timing is None else cell.timing.us


def _ratios(above: Sequence[float | None], below: Sequence[float | None]) -> list[float]:
    """Quotients, row by row, where both are known and not 0."""
    return [a / b for a, b in zip(above, below, strict=True) if a and b]
