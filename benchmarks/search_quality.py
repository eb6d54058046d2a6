"""How close a budgeted search comes to an exhaustive one of the same space, and how long it takes.

    python -m benchmarks.search_quality

The quick and the normal search start with an empty database and an empty cache of compiled variants, in a process of
their own, as a user's first would; the exhaustive one goes on from what the normal one left until every config of the
space is measured. The winners are then timed in turn in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import scipy.sparse

from benchmarks.study import SideBySide, Workload, geometric_mean, write_results
from sparsegen.backends import find_device
from sparsegen.operators import DType

PROBLEMS = [
    (Workload("transformer", 2048, 512, 256, 0.9), DType.FLOAT32),
    (Workload("transformer", 512, 2048, 256, 0.8), DType.FLOAT32),
    (Workload("rnn", 4096, 1024, 32, 0.8), DType.FLOAT32),
    (Workload("rnn", 4096, 1024, 128, 0.9), DType.FLOAT16),
    (Workload("transformer", 512, 512, 2048, 0.7), DType.FLOAT32),
    (Workload("transformer", 2048, 512, 2048, 0.95), DType.FLOAT16),
]
SEARCHES = {
    "quick": ("--effort", "quick"),
    "normal": ("--effort", "normal"),
    "exhaustive": ("--effort", "normal", "--trials", "100000", "--budget", "240"),
}


def search(
    matrix: Path, workload: Workload, dtype: DType, options: tuple[str, ...], cache: Path
) -> dict[str, Any]:
    """Run `sparsegen tune` as a user does; its JSON, with the wall time of the whole process."""
    command = [
        sys.executable, "-m", "sparsegen", "tune", "--matrix", str(matrix), "-n", str(workload.n),
        "--dtype", dtype.value, "--device", "cuda", "--db", str(cache / "tuning.db"), "--json", *options,
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "SPARSEGEN_CACHE": str(cache)}
    )
    if done.returncode:
        raise RuntimeError(f"{command} failed: {done.stdout}{done.stderr}")
    return {**json.loads(done.stdout), "wall_seconds": round(time.monotonic() - began, 2)}


@click.command()
@click.option("--limit", default=540.0, help="seconds")
@click.option("--problems", default=len(PROBLEMS), help="how many of the problems")
def main(limit: float, problems: int) -> None:
    device, rows, began = find_device("cuda"), [], time.monotonic()
    for workload, dtype in PROBLEMS[:problems]:
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {workload} and what follows is left out")
            break
        matrix = workload.matrix()
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "matrix.npz"
            scipy.sparse.save_npz(path, matrix.to_scipy())
            for name, options in SEARCHES.items():
                cache = Path(folder) / ("quick" if name == "quick" else "normal")
                cache.mkdir(exist_ok=True)
                found[name] = search(path, workload, dtype, options, cache)
        bench = SideBySide(matrix, workload.problem(dtype), device)
        winners = {n: f["winner"] for n, f in found.items()}
        calls = {n: bench.variant(v["family"], v["config"]) for n, v in winners.items()}
        times = bench.times(calls, rounds=8)
        bench.close()
        best = min(times.values())
        row = {
            "workload": str(workload),
            "dtype": dtype.value,
            "space_size": found["exhaustive"]["space_size"],
            "trials": {n: f["trials"]["done"] + f["trials"]["resumed"] for n, f in found.items()},
            "wall_seconds": {n: f["wall_seconds"] for n, f in found.items()},
            "us": {n: round(t, 2) for n, t in times.items()},
            "to_exhaustive": {n: round(t / times["exhaustive"], 4) for n, t in times.items()},
            "to_best": {n: round(t / best, 4) for n, t in times.items()},
            "winners": {n: [w["family"], w["config"]] for n, w in winners.items()},
        }
        rows.append(row)
        click.echo(
            f"{row['workload']} {dtype.value}: {row['to_exhaustive']} {row['wall_seconds']} s, {row['trials']}"
        )
        summary = {
            n: {
                "to_exhaustive": round(geometric_mean(r["to_exhaustive"][n] for r in rows), 4),
                "worst": max(r["to_exhaustive"][n] for r in rows),
                "longest_seconds": max(r["wall_seconds"][n] for r in rows),
            }
            for n in SEARCHES
        }
        write_results(device, "search_quality", rows, summary=summary)
    click.echo(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
