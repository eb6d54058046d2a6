"""Uniform sparsity, fp16, column-major: tuned families beside the paper's fixed kernels and cuSPARSE.

    python -m benchmarks.uniform --db tuned.db                      # every sweep, about 5 minutes
    python -m benchmarks.uniform --db tuned.db --sweep shapes

The sweeps are those of the paper (Muralidharan, Uniform Sparsity in Deep Neural Networks, MLSys 2023), and the
uniform list of 1024 x 1024 matrices. Each point is tuned over all families at once (or each by itself with
``--apart``); then every family's winner, the paper's two settings of its base kernel, cuSPARSE CSR and cuBLAS are
checked and timed in turn in this process. A point that the result file holds is not run again without ``--again``;
what the database holds is not measured again in any case. The paper's ratios to the cuSPARSE of its time, on an A100,
stand beside the points where it names them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from benchmarks.common import Bench, geometric_mean, result_folder, write_results
from sparsegen.backends import find_device
from sparsegen.family import Device
from sparsegen.formats import CsrMatrix
from sparsegen.generators import uniform_rows
from sparsegen.kernels import families_of
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.tuner import Budget, Effort, tune
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
@click.option("--effort", type=click.Choice([str(e) for e in Effort]), default="quick")
@click.option("--seconds", type=float, help="for the search at each point, instead of the effort's")
@click.option("--apart", is_flag=True, help="tune each family by itself: a fair best of each, in more time")
@click.option("--again", is_flag=True, help="also points that the result file holds")
@click.option("--limit", default=290.0, help="seconds; later points are left out, and the output says so")
def main(
    db: str,
    sweeps: tuple[str, ...],
    effort: str,
    seconds: float | None,
    apart: bool,
    again: bool,
    limit: float,
) -> None:
    device, began = find_device("cuda"), time.monotonic()
    budget = Budget(seconds=seconds, effort=Effort(effort))
    rows = {} if again else known_rows(device)
    for point in distinct(sweeps):
        if str(point) in rows:
            continue
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {point} and what follows is left out; run again to go on")
            break
        row = measure(point, device, db, budget, apart=apart)
        rows[str(point)] = row
        click.echo(
            f"{point!s:22} {row['us']} to cuSPARSE {row['to_cusparse']} (paper {point.paper or '-'}) "
            f"to its settings {row['to_paper_settings']} to csr_spmm {row['to_csr_spmm']} {row['family']}"
        )
        write_results(device, NAME, list(rows.values()), summary=summary(list(rows.values())))
    click.echo(json.dumps(summary(list(rows.values()))))


def known_rows(device: Device) -> dict[str, dict[str, Any]]:
    path = result_folder(device) / f"{NAME}.json"
    return {r["workload"]: r for r in json.loads(path.read_text())["rows"]} if path.is_file() else {}


def measure(point: Point, device: Device, db: str, budget: Budget, *, apart: bool) -> dict[str, Any]:
    """Tune, check and time one point; speedups are above 1 where sparsegen is faster."""
    matrix, problem = point.matrix(), point.problem
    names = [family.name for family in families_of(problem.operator)]
    winners, trials = {}, 0
    with Store.open(db) as store:
        for group in [[name] for name in names] if apart else [names]:
            result = tune(
                matrix,
                problem,
                device=device,
                store=store,
                families=group,
                budget=budget,
                baselines=False,
            )
            trials += result.counts.tried
            winners |= {name: best.variant.config_dict for name, best in result.family_winners.items()}
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
        "trials": trials,
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
