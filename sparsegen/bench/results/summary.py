"""Geometric means of a run's rows, for each suite and type. Computed from the rows, never stored."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparsegen.bench.results.results import TUNED, UNTUNED, WITHOUT, Cell, Kind, Row
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, FactorType


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and how many rows it is over; NaN over none."""

    value: float
    count: int


@dataclass(frozen=True, slots=True)
class SuiteSummary:
    """One suite in one dtype, of operands of one type.

    Ratios are of times (below 1: the first is faster), means are geometric.

    Attributes:
        rows: number of the suite's rows here, whether timed or not.
        ours: the baseline that stands for us: the tuned winner, or plain dispatch where nothing was tuned.
        to_dense: ours over the dense product of the same type.
        to_dense_tf32: the same over the dense product of float32 data in TF32; none for other types.
        to_best_sparse: ours over the fastest other sparse routine.
        untuned_to_tuned: plain dispatch over the tuned winner: the regret.
        unseen_to_tuned: the same for dispatch without what the packaged results know of the row, by the baseline's
            name; of the baselines that took part.
        worst_unseen: the largest of these ratios.
        tried, least_tried: median and least of `Row.tried` over the rows that tell it.
        preparation_ms: median of what the tuned winner's packing and upload take.
        break_even_calls: median of `Row.break_even_calls` over the rows in which the winner is faster than dense.
        best_sparse_to_dense: the fastest other sparse routine over dense.
        faster_than_dense: share of the rows that have both times in which ours is faster.
        share_of_floor: mean of floor over our time; 1 is the least time the device allows.
    """

    suite: str
    dtype: DType
    factor_type: FactorType
    rows: int
    ours: str
    to_dense: Mean
    to_dense_tf32: Mean
    to_best_sparse: Mean
    untuned_to_tuned: Mean
    unseen_to_tuned: Mapping[str, Mean]
    worst_unseen: Mapping[str, float]
    best_sparse_to_dense: Mean
    faster_than_dense: Mean
    share_of_floor: Mean
    tried: int | None
    least_tried: int | None
    preparation_ms: float | None
    break_even_calls: int | None


def summarize(rows: Iterable[Row]) -> list[SuiteSummary]:
    """One summary for each suite and pair of types, in the order in which they first appear."""
    groups: dict[tuple[str, DType, FactorType], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.dtype, row.factor_type), []).append(row)
    return [_summary(*types, some) for types, some in groups.items()]


def _summary(suite: str, dtype: DType, factor_type: FactorType, rows: Sequence[Row]) -> SuiteSummary:
    tuned = [row.us(TUNED) for row in rows]
    untuned = [row.us(UNTUNED) for row in rows]
    name = standing_for_us(rows)
    ours = [row.us(name) for row in rows]
    dense = [_us(row.dense()) for row in rows]
    sparse = [_us(row.best_sparse()) for row in rows]
    to_dense = _ratios(ours, dense)
    unseen = {
        name: _ratios([row.us(name) for row in rows], tuned)
        for name in dict.fromkeys(cell.baseline for row in rows for cell in row.cells)
        if name.startswith(WITHOUT)
    }
    tried = [count for row in rows if (count := row.tried()) is not None]
    packing = [ms for row in rows if (ms := row.preparation_ms()) is not None]
    calls = [count for row in rows if (count := row.break_even_calls()) is not None]
    shares = _ratios([row.floor.us for row in rows], ours)
    return SuiteSummary(
        suite=suite,
        dtype=dtype,
        factor_type=factor_type,
        rows=len(rows),
        ours=name,
        to_dense=geometric(to_dense),
        to_dense_tf32=geometric(_ratios(ours, [_tf32_us(row) for row in rows])),
        to_best_sparse=geometric(_ratios(ours, sparse)),
        untuned_to_tuned=geometric(_ratios(untuned, tuned)),
        unseen_to_tuned={name: geometric(ratios) for name, ratios in unseen.items()},
        worst_unseen={name: max(ratios) for name, ratios in unseen.items() if ratios},
        best_sparse_to_dense=geometric(_ratios(sparse, dense)),
        faster_than_dense=arithmetic([float(ratio < 1) for ratio in to_dense]),
        share_of_floor=arithmetic(shares),
        tried=statistics.median_low(tried) if tried else None,
        least_tried=min(tried, default=None),
        preparation_ms=statistics.median(packing) if packing else None,
        break_even_calls=statistics.median_high(calls) if calls else None,
    )


def standing_for_us(rows: Iterable[Row]) -> str:
    """Returns which of our baselines stands for us: the tuned one, unless only the untuned one was timed."""
    timed = {name for row in rows for name in (TUNED, UNTUNED) if row.us(name) is not None}
    return UNTUNED if timed == {UNTUNED} else TUNED


def _tf32_us(row: Row) -> float | None:
    """Time of the fastest dense product of float32 data in TF32, which is right to about three digits."""
    cells = [c for c in row.cells if c.kind is Kind.DENSE and c.arithmetic is Arithmetic.TF32]
    found = [cell.timing.us for cell in cells if cell.timing is not None]
    return min(found) if found and row.dtype is DType.FLOAT32 else None


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
