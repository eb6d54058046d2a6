"""Dispatch to matrices that were never tuned, from a database tuned on others of the same collection (DLMC).

    python -m benchmarks.dispatch_transfer --data DLMC --db tuned.db

The first ``--tune`` matrices of a seeded shuffle are tuned into the database. For each of the next ones the config that
dispatch chooses from it is timed in turn with the config that tuning that matrix itself finds (into a second database)
and with the family's heuristic config.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import click

from benchmarks.study import SideBySide, geometric_mean, write_results
from sparsegen.api import lookup
from sparsegen.backends import find_device
from sparsegen.matrix.load import load_matrix
from sparsegen.operators import DType, SpmmProblem
from sparsegen.tuning.tuner import Budget, Effort, tune
from sparsegen.tuning_db.store import Store

TRANSFORMER_N = (64, 256, 512, 2048)


def choose_n(path: str, batches: dict[str, int], rng: random.Random) -> int:
    """Columns of B: the layer's spatial size for ResNet-50, one of the collection's batch sizes for the Transformer."""
    return batches.get(Path(path).name.split(".")[0], 0) or rng.choice(TRANSFORMER_N)


def cases_of(data: Path, count: int | None = None) -> list[tuple[str, int]]:
    """Matrices of the collection in a seeded order, each with its n."""
    rng = random.Random(0)
    sizes = (line.split(",") for line in (data / "rn50_batchsizes.txt").read_text().split())
    batches = {name: int(n) for name, n in sizes}
    paths = sorted(p.relative_to(data).as_posix() for p in data.rglob("*.smtx.gz"))
    rng.shuffle(paths)
    return [(path, choose_n(path, batches, rng)) for path in paths[:count]]


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--db", required=True, type=click.Path(path_type=Path))
@click.option("--tune", "tuned", default=30)
@click.option("--test", "tested", default=30)
@click.option("--trials", default=60)
@click.option("--limit", default=560.0, help="seconds")
def main(data: Path, db: Path, tuned: int, tested: int, trials: int, limit: float) -> None:
    began, device = time.monotonic(), find_device("cuda")
    cases = cases_of(data, tuned + tested)
    budget = Budget(trials=trials, effort=Effort.QUICK)
    own = db.with_name(db.stem + "_own.db")
    rows = []
    for number, (path, n) in enumerate(cases):
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {path} and what follows is left out")
            break
        matrix = load_matrix(data / path)
        problem = SpmmProblem(*matrix.shape, n, DType.FLOAT32)
        with Store.open(db if number < tuned else own) as store:
            result = tune(matrix, problem, device=device, store=store, budget=budget, baselines=False)
        if number < tuned:
            continue
        choice = lookup(matrix, n=n, device=device, db=db)
        untuned = lookup(matrix, n=n, device=device, db=db, on_miss="default")
        winner = result.winner.variant
        bench = SideBySide(matrix, problem, device)
        calls = {
            "tuned": bench.variant(winner.family, winner.config.to_dict()),
            "dispatched": bench.variant(choice.family.name, choice.config.to_dict()),
            "rule_of_thumb": bench.variant(untuned.family.name, untuned.config.to_dict()),
        }
        times = bench.times(calls)
        bench.close()
        row = {
            "matrix": path,
            "n": n,
            "us": {name: round(us, 2) for name, us in times.items()},
            "how": str(choice.how),
            "regret": round(times["dispatched"] / times["tuned"], 4),
            "untuned_regret": round(times["rule_of_thumb"] / times["tuned"], 4),
            "dispatched": [choice.family.name, choice.config.to_dict()],
            "tuned": [winner.family, winner.config.to_dict()],
        }
        rows.append(row)
        click.echo(f"{path} n={n}: {row['us']} regret {row['regret']} ({row['how']})")
        summary = {
            "tuned_on": tuned,
            "tested_on": len(rows),
            "geometric_mean_regret": round(geometric_mean(r["regret"] for r in rows), 4),
            "worst_regret": max(r["regret"] for r in rows),
            "geometric_mean_untuned_regret": round(geometric_mean(r["untuned_regret"] for r in rows), 4),
        }
        write_results(device, "dispatch_transfer", rows, summary=summary)
    click.echo(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
