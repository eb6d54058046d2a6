"""A workload with the times of ours, of dense and of the best other sparse routine: what most charts plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsegen.bench.results.problem_facts import HasProblem
from sparsegen.bench.results.results import TUNED, UNTUNED, Cell, Results, Row
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.report import words
from sparsegen.report.kinds import Kind
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Baseline, Measurement, Workload

DENSE = ("cublas",)  # the database's baselines that are dense products
DATABASE = "database"  # stands for the suite of points that come from there


@dataclass(frozen=True, slots=True)
class Time:
    """A baseline's name and its time in microseconds."""

    baseline: str
    us: float


@dataclass(frozen=True, slots=True)
class Point(HasProblem):
    """One workload; a time is None where there is none.

    Attributes:
        ours: time of the tuned winner.
        variant: the tuned winner.
        flop, bytes: useful operations and the fewest bytes moved.
    """

    suite: str
    case: str
    problem: Problem
    fingerprint: str
    features: Features
    flop: int
    bytes: int
    ours: float | None
    untuned: float | None
    dense: Time | None
    sparse: Time | None
    variant: Config | None

    @property
    def density(self) -> float:
        return self.features.density

    @property
    def kind(self) -> Kind:
        return Kind.of(self.problem)

    @property
    def over_dense(self) -> float | None:
        """Speedup over the dense product, of plain dispatch if nothing was tuned."""
        return self.dense.us / self.our_us if self.dense and self.our_us else None

    @property
    def over_sparse(self) -> float | None:
        return self.sparse.us / self.our_us if self.sparse and self.our_us else None

    @property
    def our_us(self) -> float | None:
        """Microseconds of the tuned winner, or of plain dispatch if nothing was tuned."""
        return self.ours or self.untuned

    @property
    def label(self) -> str:
        return f"{self.suite}: {words.sizes(self.problem)}, {words.percent(1 - self.density)} zeros"


def from_results(parts: Iterable[Results]) -> list[Point]:
    """A point for each row."""
    return [_of_row(row) for part in parts for row in part.rows]


def _of_row(row: Row) -> Point:
    tuned = row.cell(TUNED)
    return Point(
        suite=row.suite,
        case=row.case,
        problem=row.problem,
        fingerprint=row.fingerprint,
        features=row.features,
        flop=row.floor.flop,
        bytes=row.floor.bytes,
        ours=row.us(TUNED),
        untuned=row.us(UNTUNED),
        dense=_time(row.dense()),
        sparse=_time(row.best_sparse()),
        variant=None if tuned is None else tuned.variant,
    )


def _time(cell: Cell | None) -> Time | None:
    return None if cell is None or cell.timing is None else Time(cell.baseline, cell.timing.us)


def by_workload(measurements: Iterable[Measurement]) -> dict[Workload, list[Measurement]]:
    """Measurements of one device by what they are of, in the order in which workloads first appear."""
    found: dict[Workload, list[Measurement]] = {}
    for measurement in measurements:
        found.setdefault(measurement.workload, []).append(measurement)
    return found


def from_records(measurements: Sequence[Measurement], baselines: Iterable[Baseline]) -> list[Point]:
    """A point for each workload of one device that has a winner, with the baselines timed beside it."""
    timed: dict[Workload, list[Baseline]] = {}
    for baseline in baselines:
        timed.setdefault(baseline.workload, []).append(baseline)
    points = []
    for workload, mine in by_workload(measurements).items():
        order = ranking.ranked(mine)
        if order:
            points.append(_of_workload(workload, order[0], timed.get(workload, [])))
    return points


def _of_workload(workload: Workload, winner: ranking.Ranked, baselines: list[Baseline]) -> Point:
    problem, features = workload.problem, workload.features
    cost = problem.cost(features.nnz)
    times = [Time(b.name, b.sample.median_us) for b in baselines]
    dense = [time for time in times if time.baseline in DENSE]
    sparse = [time for time in times if time.baseline not in DENSE]
    return Point(
        suite=DATABASE,
        case=workload.fingerprint[:12],
        problem=problem,
        fingerprint=workload.fingerprint,
        features=features,
        flop=cost.flop,
        bytes=cost.bytes,
        ours=winner.time_us,
        untuned=None,
        dense=min(dense, key=lambda time: time.us, default=None),
        sparse=min(sparse, key=lambda time: time.us, default=None),
        variant=winner.variant.config,
    )
