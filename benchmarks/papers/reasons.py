"""Causes of what is behind on the papers' page: rows of tables and results, each with what its study says of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.papers.bench_study import ratio
from benchmarks.papers.study import BEHIND, Document, Study
from sparsegen.bench.results.results import TUNED, Row
from sparsegen.bench.results.summary import geometric

# A dense product of at most so many microseconds: an empty kernel measures 3.6 to 4.1 of them (docs/performance.md).
LAUNCH_BOUND_US = 12.0
ON_TILES = ("block_spmm", "tma_block_spmm", "bitmap_spmm", "mma_spmm", "mma_sddmm")


def names_behind(study: Study, document: Document) -> list[str]:
    """The first cells of a study's rows, and the subjects of its results, that are behind."""
    rows = [line.strip("| ").split(" | ") for line in study.table(document).splitlines() if BEHIND in line]
    told = [one.partition(f": {BEHIND}")[0] for one in study.results(document) if f": {BEHIND}" in one]
    return list(dict.fromkeys([*(row[0] for row in rows), *told]))


def reasons(study: Study, document: Document) -> list[str]:
    """A sentence for each cause, with all that is behind for it."""
    of_cause: dict[str, list[str]] = {}
    for name in names_behind(study, document):
        of_cause.setdefault(study.why(document, name), []).append(name)
    return [f"{'; '.join(names)}: {cause}." for cause, names in of_cause.items()]


def why_dense_wins(rows: Iterable[Row], dense: str, ours: str = TUNED) -> str:
    """The cause by the rows that a dense product is faster at: launches, or what ours does beside the products."""
    lost = [row for row in rows if (over := ratio([row], dense, ours)) is not None and over < 1]
    if not lost:
        return "by little in each row"
    short = [row for row in lost if (row.us(dense) or 0.0) <= LAUNCH_BOUND_US]
    causes = []
    if short:
        causes.append(
            f"{_of(short, lost)} launch-bound: dense takes {_mean(short, dense):.1f} µs, ours "
            f"{_mean(short, ours):.1f}, an empty kernel some 4"
        )
    for is_tiled, cause in (
        (True, "unpacked to tiles for tensor cores, hardly one of which is empty"),
        (
            False,
            "gathered through the L1 cache, rows of B for every nonzero (docs/notes/gather-kernels.md)",
        ),
    ):
        some = [row for row in lost if row not in short and _is_on_tiles(row, ours) is is_tiled]
        if some:
            causes.append(
                f"{_of(some, lost)} {cause}: dense takes {_mean(some, dense):.1f} µs, ours {_mean(some, ours):.1f}"
            )
    return ", and ".join(causes)


def _of(some: Sequence[Row], lost: Sequence[Row]) -> str:
    return f"{len(some)} of {len(lost)} rows that dense wins are" if len(lost) > 1 else "it is"


def _mean(rows: Sequence[Row], baseline: str) -> float:
    return geometric([us for row in rows if (us := row.us(baseline))]).value


def _is_on_tiles(row: Row, ours: str) -> bool:
    cell = row.cell(ours)
    return cell is not None and cell.variant is not None and cell.variant.family_name in ON_TILES
