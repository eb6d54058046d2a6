"""Speed over sparsity, ours beside dense and the best other sparse routine: the README's picture, from the raw results.

    python -m benchmarks.speed_plot docs/speed-over-sparsity.svg

A point is the geometric mean over the rows of one sparsity: pruned layers of the Deep Learning Matrix Collection in
both types, and blocks of zeros. Dense is 1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from matplotlib.figure import Figure

from benchmarks.anchors import Peers, peers
from benchmarks.drawn_tables import Times
from benchmarks.make_tables import RESULTS
from benchmarks.pictures import save
from benchmarks.suite_tables import sparse_times, whole
from sparsegen.bench.results.results import Row
from sparsegen.bench.results.summary import geometric
from sparsegen.operators import DType

LEAST = 3  # rows of a point
OURS, PEER = "#0072b2", "#d55e00"
PANELS: Mapping[str, tuple[str, DType, Callable[[str], float | None]]] = {
    "pruned layers (DLMC), float32": ("dlmc", DType.FLOAT32, lambda case: _percent(r"/0\.(\d+)/", case)),
    "pruned layers (DLMC), float16": ("dlmc", DType.FLOAT16, lambda case: _percent(r"/0\.(\d+)/", case)),
    "blocks of 128 × 128, float16": ("block", DType.FLOAT16, lambda case: _percent(r"\.(\d+) b128$", case)),
}


def _percent(pattern: str, case: str) -> float | None:
    found = re.search(pattern, case)
    return None if found is None else 100 * float(f".{found[1]}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def main(file: Path) -> None:
    rows, known = whole(RESULTS).rows, peers()
    figure = Figure(figsize=(9.6, 3.1), layout="constrained")
    for axes, (title, (suite, dtype, sparsity_of)) in zip(
        figure.subplots(1, len(PANELS)), PANELS.items(), strict=True
    ):
        own = [row for row in rows if row.suite == suite and row.dtype is dtype]
        draw(axes, title, points(own, sparsity_of, known))
    figure.axes[0].set_ylabel("speed over dense cuBLAS")
    save(figure, file)


def points(
    rows: Iterable[Row], sparsity_of: Callable[[str], float | None], known: Peers
) -> list[tuple[float, float, float | None]]:
    """Percent of zeros; how much faster than dense ours is, and the best other sparse routine."""
    ours, theirs = defaultdict(list), defaultdict(list)
    for row in rows:
        times, sparsity = Times.of(row), sparsity_of(row.case)
        if sparsity is None or not times.dense or not times.ours:
            continue
        ours[sparsity].append(times.dense / times.ours)
        if others := sparse_times(row, known):
            theirs[sparsity].append(times.dense / min(others.values()))
    return [
        (sparsity, geometric(found).value, geometric(theirs[sparsity]).value if theirs[sparsity] else None)
        for sparsity, found in sorted(ours.items())
        if len(found) >= LEAST
    ]


def draw(axes: Any, title: str, found: list[tuple[float, float, float | None]]) -> None:
    compared = [(sparsity, peer) for sparsity, _, peer in found if peer is not None]
    axes.axhline(1.0, color="0.35", linewidth=1, linestyle="--", label="dense cuBLAS")
    if compared:
        axes.plot(
            *zip(*compared, strict=True), color=PEER, marker="s", ms=4, label="best other sparse routine"
        )
    if found:
        axes.plot(
            *zip(*[(s, o) for s, o, _ in found], strict=True), color=OURS, marker="o", ms=4, label="sparsegen"
        )
    axes.set(title=title, xlabel="zeros, %", yscale="log")
    axes.title.set_fontsize(10)
    ticks = (0.1, 0.2, 0.5, 1, 2, 5)
    axes.set_yticks(ticks, [f"{tick:g}×" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.legend(fontsize=7)


if __name__ == "__main__":
    main()
