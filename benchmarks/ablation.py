"""What each idea of csr_spmm brings: the tuned config, and the same with one idea taken away or changed.

    python -m benchmarks.ablation --db tuned.db

Row lengths vary (CoV 0.5, like magnitude-pruned weights), so that the row swizzle has something to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from benchmarks.common import Bench, geometric_mean, write_results
from sparsegen.backends import find_device
from sparsegen.errors import CompileError, LaunchError
from sparsegen.kernels import family
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import DType, SpmmProblem
from sparsegen.tuning.tuner import Budget, Effort, tune
from sparsegen.tuning_db.store import Store

SHAPES = [(2048, 512, 512, 0.9), (512, 2048, 256, 0.8), (4096, 1024, 128, 0.8), (8192, 2048, 128, 0.9)]


@dataclass(frozen=True)
class Change:
    """One idea, and what the tuned config becomes without it."""

    idea: str
    values: Mapping[str, Any]


CHANGES = [
    Change("vector loads of B (scalar instead)", {"dense_vector_width": 1}),
    Change("vector loads of A (scalar instead)", {"sparse_vector_width": 1, "staging": "shared"}),
    Change("rows padded for alignment (reverse offset instead)", {"row_alignment": "reverse_offset"}),
    Change("row swizzle (natural order instead)", {"row_order": "natural"}),
    Change("row swizzle, bundling alone", {"row_order": "bundled"}),
    Change("row swizzle, binning alone", {"row_order": "binned"}),
    Change(
        "prescaled 32-bit indices (16 bits, scaled in the kernel)",
        {"prescale_indices": False, "index_bits": 16},
    ),
    Change("32-bit indices scaled in the kernel", {"prescale_indices": False, "index_bits": 32}),
    Change("residue unrolled", {"residue_unroll": True}),
    Change("cp.async ahead (staging without it)", {"staging": "shared"}),
    Change("cp.async ahead (each thread loads A itself)", {"staging": "broadcast"}),
    Change("rows split over subwarps (one each)", {"row_splits": 1}),
    Change("subwarps (a whole warp per row)", {"threads_per_row": 32}),
]


@click.command()
@click.option("--db", required=True, type=click.Path())
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32")
def main(db: str, dtype: str) -> None:
    device, csr = find_device("cuda"), family("csr_spmm")
    rows = []
    for m, k, n, sparsity in SHAPES:
        matrix = random_rows(m, k, 1 - sparsity, 0.5, 0)
        problem = SpmmProblem(m, k, n, DType(dtype))
        with Store.open(db) as store:
            result = tune(
                matrix, problem, device=device, store=store, families=["csr_spmm"],
                budget=Budget(effort=Effort.QUICK), baselines=False,
            )  # fmt: skip
        tuned = result.winner.variant.config.to_dict()
        bench = Bench(matrix, problem, device)
        calls, left_out = {"tuned": bench.variant("csr_spmm", tuned)}, {}
        for change in CHANGES:
            values = valid_change(tuned, change.values, problem, device)
            if values == tuned:
                left_out[change.idea] = "the tuned config is without it"
                continue
            broken = csr.broken_constraints(problem, csr.config(**values), device)
            try:
                if broken:
                    raise ValueError("; ".join(broken))
                calls[change.idea] = bench.variant("csr_spmm", values)
            except (CompileError, LaunchError, ValueError) as error:
                left_out[change.idea] = str(error)
        times = bench.times(calls)
        bench.close()
        row = {
            "workload": f"{m}x{k}x{n} {sparsity}, row CoV 0.5",
            "config": tuned,
            "us": times,
            "slowdown": {
                idea: round(us / times["tuned"], 3) for idea, us in times.items() if idea != "tuned"
            },
            "left_out": left_out,
        }
        rows.append(row)
        click.echo(f"{row['workload']}: {row['slowdown']}")
    ideas = [change.idea for change in CHANGES]
    means = {i: geometric_mean(r["slowdown"][i] for r in rows if i in r["slowdown"]) for i in ideas}
    write_results(
        device, f"ablation_{dtype}", rows, summary={i: round(v, 3) for i, v in means.items() if v == v}
    )


def valid_change(
    tuned: Mapping[str, Any], change: Mapping[str, Any], problem: SpmmProblem, device: Any
) -> dict[str, Any]:
    """The tuned config with a change, and rows_per_block such that a block keeps its size."""
    values = {**tuned, **change}
    threads = tuned["threads_per_row"] * tuned["row_splits"] * tuned["rows_per_block"]
    values["rows_per_block"] = max(1, threads // (values["threads_per_row"] * values["row_splits"]))
    widest = values["tile_n"] // values["threads_per_row"]
    values["dense_vector_width"] = min(values["dense_vector_width"], widest)
    return values


if __name__ == "__main__":
    main()
