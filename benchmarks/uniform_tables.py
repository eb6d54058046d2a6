"""Tables of uniform sparsity: the suites ``uniform*`` in float16, beside cuSPARSE and cuBLAS.

They are the sweeps of S. Muralidharan: Uniform Sparsity in Deep Neural Networks, MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.markdown import NONE, figure, quotient, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results.results import TUNED, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.operators import DType

SWEEPS = {
    "uniform-shapes": "128² to 1024² at 60 %, n = 128 and 1024",
    "uniform-sparsity": "128³ and 1024³ at 5 to 95 %",
    "uniform-batch": "1024² at 60 %, n = 128 to 16384",
    "uniform": "1024² at 60 and 95 %, n = 128 to 16384",
}
OTHERS = {"cusparse-csr": "cuSPARSE", "cublas": "dense cuBLAS"}


def summary(folder: Path) -> str:
    """Geometric means of the speedup over each of the others, a line for each sweep and one for all points."""
    lines = [[told, *_speedups(rows)] for told, rows in _sweeps(folder)]
    points = {row.case: row for _, rows in _sweeps(folder) for row in rows}
    lines.append(["all", *_speedups(list(points.values()))])
    head = ["geometric mean of the speedup", "points", *(f"over {name}" for name in OTHERS.values())]
    return table(head, lines) + _origin(folder)


def points(folder: Path) -> str:
    """Microseconds of every point, by ours and the others."""
    every = {row.case: row for _, rows in _sweeps(folder) for row in rows}
    lines = []
    for row in sorted(every.values(), key=lambda row: (row.m, row.n, row.nnz)):
        us = [row.us(name) for name in (TUNED, *OTHERS)]
        cell = row.cell(TUNED)
        family = cell.variant.family_name if cell and cell.variant else NONE
        ratios = (quotient(other, us[0]) for other in us[1:])
        lines.append([row.case, family, *map(figure, (*us, *ratios))])
    others = list(OTHERS.values())
    head = ["m × k × n, sparsity", "family", "µs", *others, *(f"over {other}" for other in others)]
    return table(head, lines) + _origin(folder)


def _sweeps(folder: Path) -> Iterator[tuple[str, Sequence[Row]]]:
    every = [row for results in read(folder, suites=SWEEPS) for row in results.rows]
    for suite, told in SWEEPS.items():
        yield told, [row for row in every if row.suite == suite and row.dtype is DType.FLOAT16]


def _speedups(rows: Sequence[Row]) -> Iterator[str | int]:
    """Yields the number of rows, and for each of the others the mean speedup over those that have it."""
    yield len(rows)
    for other in OTHERS:
        ratios = [ratio for row in rows if (ratio := quotient(row.us(other), row.us(TUNED))) is not None]
        some = f" ({len(ratios)} of {len(rows)})" if 0 < len(ratios) < len(rows) else ""
        yield f"{geometric(ratios).value:.2f} ×{some}" if ratios else NONE


def _origin(folder: Path) -> str:
    return origin(read(folder, suites=SWEEPS))
