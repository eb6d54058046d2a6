"""Column-major activations (tokens × features, as in a linear layer) beside row-major ones.

python -m benchmarks.layouts
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.common import Bench, Workload, write_results
from sparsegen.backends import find_device
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.tuner import Budget, tune
from sparsegen.tuning_db.store import Store

WORKLOADS = [
    Workload("linear", 2048, 512, 2048, 0.9),
    Workload("linear", 512, 2048, 2048, 0.9),
    Workload("linear", 2048, 2048, 128, 0.8),
]


@click.command()
@click.option("--seconds", default=8.0, help="search time of each")
def main(seconds: float) -> None:
    device, rows = find_device("cuda"), []
    with tempfile.TemporaryDirectory() as folder:
        for workload in WORKLOADS:
            matrix = workload.matrix()
            for dtype in (DType.FLOAT32, DType.FLOAT16):
                for layout in Layout:
                    problem = SpmmProblem(workload.m, workload.k, workload.n, dtype, layout)
                    with Store.open(Path(folder) / "tuning.db") as store:
                        result = tune(
                            matrix,
                            problem,
                            device=device,
                            store=store,
                            budget=Budget(seconds=seconds),
                            baselines=False,
                        )
                    winner = result.winner.variant
                    bench = Bench(matrix, problem, device)
                    variant = bench.variant(winner.family, winner.config_dict)
                    times = bench.times({"sparsegen": variant, **bench.vendor_calls()})
                    bench.close()
                    row = {
                        "workload": str(workload),
                        "dtype": str(dtype),
                        "layout": str(layout),
                        "us": {name: round(us, 2) for name, us in times.items()},
                        "trials": result.counts.done,
                        "family": winner.family,
                        "config": winner.config_dict,
                    }
                    rows.append(row)
                    click.echo(
                        f"{workload} {dtype} {layout}: {row['us']} {winner.family}, {row['trials']} trials"
                    )
                    write_results(device, "layouts", rows)


if __name__ == "__main__":
    main()
