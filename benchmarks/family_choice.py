"""Does dispatch choose the right family? Untuned matrices, fp16, column-major: its choice beside each family's best.

    python -m benchmarks.family_choice --db tuned.db

The matrices, half with rows of equal length and half without, are in no database. Of each family up to three configs
run: its heuristic config, and two that its measurements on the nearest workloads suggest. The fastest stands for it.
Dispatch's choice is timed in turn with them in one process, after a check of every result.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from benchmarks.study import SideBySide, geometric_mean, write_results
from sparsegen.backends import find_device, toolchain
from sparsegen.backends.executor import Toolchain
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.neighbours import similar_configs
from sparsegen.kernels import families_of, family_of
from sparsegen.kernels import family as family_named
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import power_law, random_rows, uniform_rows
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.render import render
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store

SIZES = (256, 384, 512, 768, 1024, 1536, 2048)
COLUMNS = (64, 128, 256, 512, 1024, 2048)
SPARSITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Case:
    """A matrix of some kind and the problem on it."""

    kind: str
    matrix: CsrMatrix
    problem: SpmmProblem

    def __str__(self) -> str:
        p = self.problem
        return f"{self.kind} {p.m}x{p.k}x{p.n} {1 - self.matrix.nnz / (p.m * p.k):.2f}"


def cases(count: int, seed: int = 11) -> Iterator[Case]:
    """Alternately uniform and not; sizes, columns and sparsities drawn from the tuples above."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        m, k, n = (int(rng.choice(values)) for values in (SIZES, SIZES, COLUMNS))
        density = 1 - float(rng.choice(SPARSITIES))
        if i % 2 == 0:
            kind, matrix = "uniform", uniform_rows(m, k, max(1, round(k * density)), seed=100 + i)
        elif i % 4 == 1:
            kind, matrix = "uneven", random_rows(m, k, density, float(rng.choice((0.3, 0.8))), 100 + i)
        else:
            kind, matrix = "power law", power_law(m, k, min(density, 0.1), 100 + i)
        yield Case(kind, matrix, SpmmProblem(m, k, n, DType.FLOAT16, Layout.COLUMN))


def configs_of(family: AnyFamily, workload: Workload, device: Device, known: Layers) -> list[dict[str, Any]]:
    """The family's heuristic config, and the two that its measurements on the nearest workloads suggest."""
    problem, features = workload.problem, workload.features
    found = [family.heuristic(problem, features, device)]

    def is_allowed(config: Config) -> bool:
        return family_of(config) is family and family.suits(problem, features, config, device)

    listed = known.list_workloads(kind=problem.kind, like=device)
    found += similar_configs(workload, device, known, listed, is_allowed)[:2]
    suited = [c for c in dict.fromkeys(found) if family.suits(problem, features, c, device)]
    return [config.to_dict() for config in suited]


@dataclass(frozen=True)
class Plan:
    """What runs for a case: dispatch's choice, and the configs of each family (name and values)."""

    case: Case
    choice: Choice
    configs: tuple[tuple[str, dict[str, Any]], ...]

    @classmethod
    def of(cls, case: Case, device: Device, known: Layers) -> Plan:
        workload = Workload.of(case.problem, case.matrix)
        choice = choose(workload, device, known)
        configs = [
            (family.name, config)
            for family in families_of(case.problem.operator)
            for config in configs_of(family, workload, device, known)
        ]
        return cls(case, choice, ((choice.family.name, choice.config.to_dict()), *configs))

    def compile(self, compiler: Toolchain) -> None:
        for name, values in self.configs:
            family = family_named(name)
            compiler.compile(name, family.entry, render(family, self.case.problem, family.config(**values)))

    def measure(self, device: Device) -> dict[str, Any]:
        bench = SideBySide(self.case.matrix, self.case.problem, device)
        calls = {str(i): bench.variant(name, values) for i, (name, values) in enumerate(self.configs)}
        us = bench.times(calls, rounds=3, samples=10)
        bench.close()
        best: dict[str, float] = {}
        for i, (name, _) in enumerate(self.configs):
            best[name] = min(us[str(i)], best.get(name, us[str(i)]))
        fastest = min(best, key=lambda name: best[name])
        return {
            "case": str(self.case),
            "kind": self.case.kind,
            "chosen": self.choice.family.name,
            "how": str(self.choice.how),
            "chosen_us": round(us["0"], 2),
            "best_family": fastest,
            "families_us": {name: round(time_us, 2) for name, time_us in best.items()},
            "regret": round(us["0"] / best[fastest], 4),
        }


@click.command()
@click.option("--db", required=True, type=click.Path())
@click.option("--count", default=40)
def main(db: str, count: int) -> None:
    device, rows = find_device("cuda"), []
    with Store.open(db, read_only=True) as store:
        known = Layers([store, seeds()])
        plans = [Plan.of(case, device, known) for case in cases(count)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda plan: plan.compile(toolchain(device)), plans))
    for plan in plans:
        row = plan.measure(device)
        rows.append(row)
        click.echo(
            f"{row['case']:34} {row['chosen']:10} {row['chosen_us']:8} best {row['best_family']:10} "
            f"{row['families_us'][row['best_family']]:8} regret {row['regret']}"
        )
        write_results(device, "family_choice", rows, summary=summary(rows))
    click.echo(str(summary(rows)))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean and worst of the chosen variant's time over the best family's, and how many are within 10 %."""
    worst = max(rows, key=lambda row: row["regret"])
    return {
        "cases": len(rows),
        "geometric_mean": round(geometric_mean(row["regret"] for row in rows), 4),
        "worst": [worst["case"], worst["regret"]],
        "within_10_percent": sum(row["regret"] <= 1.1 for row in rows),
    }


if __name__ == "__main__":
    main()
