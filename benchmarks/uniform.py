"""Uniform sparsity, fp16, column-major: tuned families beside the paper's fixed kernels and cuSPARSE.

    python -m benchmarks.uniform --db tuned.db                      # every sweep, about 4 minutes
    python -m benchmarks.uniform --db tuned.db --sweep shapes

The sweeps are those of the paper (Muralidharan, Uniform Sparsity in Deep Neural Networks, MLSys 2023), and the
uniform list of 1024 x 1024 matrices. All points are tuned first, over all families at once; then every family's
winner, the paper's two settings of its base kernel, cuSPARSE CSR and cuBLAS are checked and timed in turn in this
process. A point that the result file holds is not run again without ``--again``, and one that the database holds a
finished search of is not tuned again. The paper's ratios to the cuSPARSE of its time, on an A100, stand beside the
points where it names them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import click

from benchmarks.common import Bench, geometric_mean, known_rows, write_results
from benchmarks.prepared import tuned_once
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Value
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import uniform_rows
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.tuning_db.ranking import ranked
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store

NAME = "uniform"
PAPER_SETTINGS = {"paper (1, 8)": {"vsize": 1, "nwarp": 8}, "paper (2, 8)": {"vsize": 2, "nwarp": 8}}


@dataclass(frozen=True)
class Point:
    """A square uniform matrix times a dense one; ``paper`` is the ratio that it names there, if any."""

    sweep: str
    size: int
    n: int
    sparsity: float
    paper: str | None = None

    def __str__(self) -> str:
        return f"{self.size}x{self.size}x{self.n} {self.sparsity:.2f}"

    @property
    def problem(self) -> SpmmProblem:
        return SpmmProblem(self.size, self.size, self.n, DType.FLOAT16, Layout.COLUMN)

    def matrix(self) -> CsrMatrix:
        return uniform_rows(self.size, self.size, round(self.size * (1 - self.sparsity)), seed=0)


def points() -> Iterator[Point]:
    """Every sweep; a point that two of them share belongs to the first."""
    for size in (128, 256, 512, 1024):
        for n in (128, 1024):
            yield Point("shapes", size, n, 0.60, "at most 13.73")
    for size in (128, 1024):
        for sparsity in (0.05, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95):
            yield Point("sparsity", size, size, sparsity, "1.50 to 3.29" if size == 1024 else None)
    for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        yield Point("columns", 1024, n, 0.60, "1.62" if n == 16384 else None)
    for n in (128, 1024, 16384):
        for sparsity in (0.60, 0.95):
            yield Point("list", 1024, n, sparsity)


def distinct(wanted: tuple[str, ...]) -> list[Point]:
    found: dict[str, Point] = {}
    for point in points():
        if not wanted or point.sweep in wanted:
            found.setdefault(str(point), point)
    return list(found.values())


@click.command()
@click.option("--db", required=True, type=click.Path())
@click.option(
    "--sweep", "sweeps", multiple=True, type=click.Choice(["shapes", "sparsity", "columns", "list"])
)
@click.option("--seconds", default=12.0, help="for the search at each point, all families together")
@click.option("--jobs", default=4, help="searches side by side; they take turns on the device")
@click.option("--again", is_flag=True, help="also points that the result file holds")
@click.option("--limit", default=290.0, help="seconds; later points are left out, and the output says so")
def main(db: str, sweeps: tuple[str, ...], seconds: float, jobs: int, again: bool, limit: float) -> None:
    device, began = find_device("cuda"), time.monotonic()
    rows = {} if again else known_rows(device, NAME, "workload")
    wanted = [point for point in distinct(sweeps) if str(point) not in rows]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        tuned = [pool.submit(tune_point, point, db, seconds) for point in wanted]
        for point, done in zip(wanted, tuned, strict=True):
            click.echo(f"{point!s:22} {done.result()}")
    for point in wanted:
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {point} and what follows is left out; run again to go on")
            break
        row = measure(point, device, db)
        rows[str(point)] = row
        click.echo(
            f"{point!s:22} {row['us']} to cuSPARSE {row['to_cusparse']} (paper {point.paper or '-'}) "
            f"to its settings {row['to_paper_settings']} to csr_spmm {row['to_csr_spmm']} {row['family']}"
        )
        write_results(device, NAME, list(rows.values()), summary=summary(list(rows.values())))
    click.echo(json.dumps(summary(list(rows.values()))))


def tune_point(point: Point, db: str, seconds: float) -> str:
    """Search over all families, unless that was finished earlier; in a process of its own."""
    return tuned_once(point.matrix(), point.problem, find_device("cuda"), db, seconds)


def measure(point: Point, device: Device, db: str) -> dict[str, Any]:
    """Check and time the recorded winners of each family; speedups are above 1 where sparsegen is faster."""
    matrix, problem = point.matrix(), point.problem
    with Store.open(db) as store:
        workload = Workload(problem, matrix.fingerprint(), Features.of(matrix))
        measured = store.measurements(workload, device)
    winners: dict[str, dict[str, Value]] = {}
    for found in ranked(measured):
        winners.setdefault(found.variant.family, found.variant.config.to_dict())
    bench = Bench(matrix, problem, device)
    calls = {name: bench.variant(name, config) for name, config in winners.items()}
    for name, settings in PAPER_SETTINGS.items():
        calls[name] = bench.variant("uspmm", settings)
    calls |= bench.vendor_calls()
    us = bench.times(calls)
    bench.close()
    best = min(winners, key=lambda name: us[name])

    def ratio(*contenders: str) -> float | None:
        there = [us[c] for c in contenders if c in us]
        return round(min(there) / us[best], 3) if there else None

    return {
        "sweep": point.sweep,
        "workload": str(point),
        "us": {name: round(t, 2) for name, t in us.items()},
        "family": best,
        "configs": winners,
        "to_cusparse": ratio("cusparse"),
        "to_cublas": ratio("cublas"),
        "to_paper_settings": ratio(*PAPER_SETTINGS),
        "to_csr_spmm": ratio("csr_spmm"),
        "paper_to_cusparse": point.paper,
        "tried": len({m.variant for m in measured}),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the speedups, and the smallest of each."""
    found: dict[str, Any] = {"points": len(rows)}
    for name in ("to_cusparse", "to_cublas", "to_paper_settings", "to_csr_spmm"):
        ratios = {r["workload"]: r[name] for r in rows if r[name] is not None}
        if ratios:
            worst = min(ratios, key=lambda w: ratios[w])
            found[name] = {
                "geometric_mean": round(geometric_mean(ratios.values()), 3),
                "least": [worst, ratios[worst]],
            }
    return found


if __name__ == "__main__":
    main()
