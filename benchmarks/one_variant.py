"""Launch one variant a few times, for a profiler to look at.

    ncu --clock-control none --kernel-name regex:spmm --launch-skip 2 --launch-count 1 --section SpeedOfLight \\
        python -m benchmarks.one_variant 8192 2048 32 0.7 --family panel_spmm --config tile_n=16
"""

from __future__ import annotations

import click

from benchmarks.common import Bench, Workload
from sparsegen.backends import find_device
from sparsegen.kernels import family as family_named
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import uniform_rows
from sparsegen.operators import DType, Layout, SpmmProblem


@click.command()
@click.argument("m", type=int)
@click.argument("k", type=int)
@click.argument("n", type=int)
@click.argument("sparsity", type=float)
@click.option("--dtype", type=click.Choice([str(d) for d in DType]), default="float32")
@click.option("--layout", type=click.Choice([str(v) for v in Layout]), default="row")
@click.option("--uniform", is_flag=True, help="every row has the same number of nonzeros")
@click.option("--family", "family_name", default="csr_spmm")
@click.option("--config", "changes", multiple=True, metavar="KEY=VALUE", help="changes to the family's guess")
@click.option("--launches", default=3)
def main(
    m: int,
    k: int,
    n: int,
    sparsity: float,
    dtype: str,
    layout: str,
    uniform: bool,
    family_name: str,
    changes: tuple[str, ...],
    launches: int,
) -> None:
    workload, device = Workload("one", m, k, n, sparsity), find_device("cuda")
    matrix = uniform_rows(m, k, round(k * (1 - sparsity)), 0) if uniform else workload.matrix()
    problem, family = SpmmProblem(m, k, n, DType(dtype), Layout(layout)), family_named(family_name)
    guess = family.guess(problem, Features.of(matrix), device).to_dict()
    config = {**guess, **dict(change.split("=", 1) for change in changes)}
    family.require_valid(problem, family.config(**config), device)
    bench = Bench(matrix, problem, device)
    call = bench.variant(family_name, config)
    for _ in range(launches):
        call()
    bench.executor.synchronize()
    taken = bench.times({"variant": call}, rounds=1)["variant"]
    click.echo(f"{workload} {dtype} {layout} {family_name} {config}: {taken:.1f} µs")
    bench.close()


if __name__ == "__main__":
    main()
