"""Geometric means for each suite and type, and what became of each baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparsegen.bench.results.problem_facts import of_factors
from sparsegen.bench.results.results import Results, Status
from sparsegen.bench.results.summary import Mean, geometric, summarize
from sparsegen.report import words
from sparsegen.report.content import Section
from sparsegen.report.material import Material
from sparsegen.report.points import Point
from sparsegen.report.tables import Table


def section(material: Material) -> Section:
    lead = (
        "Geometric means of speedups: above 1 ours is faster. Dense is the product of the same type in the same "
        "precision. A number in brackets says over how many rows, where not over all.",
    )
    if not material.inputs.has_bench:
        missing = (
            "There is no result file: means by suite, our untuned dispatch and the floor of the device need "
            "one (sparsegen bench).",
        )
        return Section("summary", "Summary", lead, (_recorded(material.points),), missing=missing)
    parts = [part for _, part in material.inputs.results]
    return Section("summary", "Summary", lead, (_suites(parts), _baselines(parts)))


def _suites(parts: Sequence[Results]) -> Table:
    rows = []
    for s in summarize(row for part in parts for row in part.rows):
        rows.append(
            (
                s.suite,
                of_factors(s.factor_type, words.DTYPES[s.dtype]),
                str(s.rows),
                _inverse(s.to_dense, s.rows),
                _inverse(s.to_best_sparse, s.rows),
                _over(s.untuned_to_tuned, s.rows),
                _inverse(s.best_sparse_to_dense, s.rows),
                _with_count(words.percent(s.faster_than_dense.value), s.faster_than_dense, s.rows),
                _with_count(words.percent(s.share_of_floor.value), s.share_of_floor, s.rows),
            )
        )
    head = (
        "suite",
        "type",
        "rows",
        "over dense",
        "over the best other sparse",
        "tuned over untuned",
        "best other sparse over dense",
        "faster than dense",
        "share of the device's floor",
    )
    return Table("By suite and type", head, tuple(rows), text_columns=2)


def _recorded(points: Sequence[Point]) -> Table:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(str(point.kind), []).append(point)
    rows = []
    for name, some in groups.items():
        dense = [p.over_dense for p in some if p.over_dense]
        sparse = [p.over_sparse for p in some if p.over_sparse]
        wins = sum(ratio > 1 for ratio in dense)
        rows.append(
            (
                name,
                str(len(some)),
                _over(geometric(dense), len(some)),
                _over(geometric(sparse), len(some)),
                f"{wins} of {len(dense)}" if dense else words.MISSING,
            )
        )
    head = ("workloads of the database", "count", "over dense", "over cuSPARSE", "faster than dense")
    return Table("Recorded winners by operator, type and layout", head, tuple(rows))


def _over(mean: Mean, rows: int) -> str:
    return _with_count(words.factor(mean.value), mean, rows)


def _inverse(mean: Mean, rows: int) -> str:
    return _over(Mean(1 / mean.value, mean.count), rows)


def _with_count(text: str, mean: Mean, rows: int) -> str:
    return text if mean.count in (0, rows) else f"{text} ({mean.count})"


def _baselines(parts: Sequence[Results]) -> Table:
    """Table of how often each baseline was timed, and why not; those that support none of the rows are left out."""
    statuses: dict[str, Counter[Status]] = {}
    reasons: dict[str, Counter[str]] = {}
    for part in parts:
        for row in part.rows:
            for cell in row.cells:
                statuses.setdefault(cell.baseline, Counter())[cell.status] += 1
                if cell.reason:
                    reasons.setdefault(cell.baseline, Counter())[cell.reason.partition("\n")[0]] += 1
    rows = []
    for baseline, counted in statuses.items():
        if set(counted) == {Status.UNSUPPORTED}:
            continue
        others = ", ".join(
            f"{number} {status}" for status, number in counted.items() if status is not Status.OK
        )
        common = reasons.get(baseline, Counter()).most_common(1)
        why = f"{others}; most often: {common[0][0]}" if common else words.MISSING
        rows.append((baseline, why, str(counted[Status.OK])))
    return Table("Baselines", ("baseline", "not timed", "timed rows"), tuple(rows), text_columns=2)
