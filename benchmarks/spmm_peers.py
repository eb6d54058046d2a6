"""Tuned SpMM against cuSPARSE, Sputnik and dense cuBLAS on the rnn and transformer lists.

    python -m benchmarks.spmm_peers --dtype float32 --db tuned.db

Each workload is tuned (what the database holds already is not measured again), then the winner, cuSPARSE (best
algorithm and layout) and cuBLAS (best storage of A) are timed in turn in this process. Sputnik's figures are those
of peers_h100.json: its code is not part of this repository.
"""

from __future__ import annotations

import time

import click

from benchmarks.common import Bench, geometric_mean, peer_workloads, write_results
from sparsegen.backends import find_device
from sparsegen.operators import DType
from sparsegen.tuner import Budget, Effort, tune
from sparsegen.tuning_db.store import Store


@click.command()
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32")
@click.option("--list", "lists", multiple=True, default=["rnn", "transformer"])
@click.option("--db", required=True, type=click.Path())
@click.option("--effort", type=click.Choice([str(e) for e in Effort]), default="quick")
@click.option("--limit", default=500.0, help="seconds; later workloads are left out, and the output says so")
def main(dtype: str, lists: tuple[str, ...], db: str, effort: str, limit: float) -> None:
    device = find_device("cuda")
    kind = "fp32" if dtype == "float32" else "fp16"
    rows, began = [], time.monotonic()
    for workload, peers in peer_workloads(lists):
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {workload} and what follows is left out")
            break
        matrix, problem = workload.matrix(), workload.problem(DType(dtype))
        with Store.open(db) as store:
            result = tune(
                matrix,
                problem,
                device=device,
                store=store,
                budget=Budget(effort=Effort(effort)),
                baselines=False,
            )
        winner = result.winner.variant
        bench = Bench(matrix, problem, device)
        calls = {"sparsegen": bench.variant(winner.family, winner.config_dict), **bench.vendor_calls()}
        times = bench.times(calls)
        bench.close()
        sputnik = peers[f"sputnik_{kind}"]
        row = {
            "list": workload.name,
            "workload": str(workload),
            "us": {name: round(us, 2) for name, us in times.items()},
            "sputnik_us": sputnik,
            "ratio": round(times["sparsegen"] / min(times["cusparse"], sputnik), 4),
            "dense_ratio": round(times["sparsegen"] / times["cublas"], 4),
            "family": winner.family,
            "config": winner.config_dict,
            "trials": result.counts.done + result.counts.resumed,
            "tuning_seconds": round(result.seconds, 1),
        }
        rows.append(row)
        click.echo(f"{workload!s:24} {row['us']} sputnik {sputnik} ratio {row['ratio']} {winner.family}")
        write_results(device, f"spmm_peers_{kind}", rows, summary=summary(rows))
    click.echo(str(summary(rows)))


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Geometric means per list and over all, and the worst workload."""
    ratios = {str(r["workload"]): float(r["ratio"]) for r in rows}  # type: ignore[arg-type]
    worst = max(ratios, key=lambda name: ratios[name])
    return {
        "workloads": len(rows),
        "geometric_mean_to_best_of_cusparse_and_sputnik": round(geometric_mean(ratios.values()), 4),
        "geometric_mean_to_dense": round(geometric_mean(float(r["dense_ratio"]) for r in rows), 4),  # type: ignore[arg-type]
        "worst": [worst, ratios[worst]],
    }


if __name__ == "__main__":
    main()
