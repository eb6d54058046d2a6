"""A grid of configs of one family on some workloads, each verified and timed, beside cuBLAS and cuSPARSE.

    python -m benchmarks.sweep lane_stream_spmm --dtype float16 --layout column --at 4096x4096x8:0.5 \\
        --at 28672x8192x8:0.8 --set warps_m+warps_k=8+1,2+4 --set ring_rows=96,160 --set slots=4,6,8 --l2 clean

Every combination of the settings changes the family's guess; those that are not valid are left out and counted. All
are compiled first. Raw output: ``sweep_FAMILY.json``, written anew after every workload.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click

from benchmarks.common import Bench, Workload, write_results
from sparsegen.backends import find_device, toolchain
from sparsegen.errors import SparsegenError
from sparsegen.kernels import family as family_named
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.l2 import L2
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.render import render

SAMPLES = 12


def parsed(text: str) -> Workload:
    """``MxKxN:SPARSITY``."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+):(0?\.\d+)", text)
    if found is None:
        raise click.BadParameter(f"{text!r} is not like 4096x4096x8:0.5", param_hint="--at")
    return Workload("sweep", *(int(size) for size in found.groups()[:3]), float(found[4]))


def grid(settings: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Every combination of ``KEY=VALUE,VALUE``; ``KEY+KEY=VALUE+VALUE,...`` are keys that change together."""
    axes = []
    for setting in settings:
        keys, separator, values = setting.partition("=")
        together = [
            tuple(zip(keys.split("+"), value.split("+"), strict=False)) for value in values.split(",")
        ]
        if not separator or any(len(pairs) != keys.count("+") + 1 for pairs in together):
            raise click.BadParameter(f"{setting!r} is not like KEY=VALUE,VALUE", param_hint="--set")
        axes.append(together)
    yield from (dict(itertools.chain(*combination)) for combination in itertools.product(*axes))


def configs_of(
    family: AnyFamily,
    problem: SpmmProblem,
    matrix: CsrMatrix,
    device: Device,
    settings: tuple[str, ...],
) -> tuple[list[Any], int]:
    """The valid configs, the guess first, and how many were not."""
    guess = family.guess(problem, Features.of(matrix), device)
    combined = [family.config(**guess.to_dict() | changes) for changes in grid(settings)]
    listed = list(dict.fromkeys([guess, *combined]))
    valid = [c for c in listed if not family.broken_constraints(problem, c, device)]
    return valid, len(listed) - len(valid)


@click.command()
@click.argument("name", metavar="FAMILY")
@click.option("--at", "places", multiple=True, required=True, metavar="MxKxN:SPARSITY")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE,...", help="a tunable's values")
@click.option("--dtype", type=click.Choice([str(d) for d in DType]), default="float32")
@click.option("--layout", type=click.Choice([str(v) for v in Layout]), default="row")
@click.option("--l2", type=click.Choice([str(v) for v in L2]), default="cold", help="as in sparsegen bench")
@click.option("--show", default=8, help="fastest configs to print")
@click.option("--limit", default=540.0, help="begin no workload later, seconds")
def main(
    name: str,
    places: tuple[str, ...],
    settings: tuple[str, ...],
    dtype: str,
    layout: str,
    l2: str,
    show: int,
    limit: float,
) -> None:
    began, device, family, rows = time.monotonic(), find_device("cuda"), family_named(name), []
    workloads = [parsed(place) for place in places]
    with ThreadPoolExecutor() as pool:
        matrices = list(pool.map(Workload.matrix, workloads))
    problems = [SpmmProblem(w.m, w.k, w.n, DType(dtype), Layout(layout)) for w in workloads]
    found = [configs_of(family, p, a, device, settings) for p, a in zip(problems, matrices, strict=True)]
    sources = {render(family, p, c) for p, (cs, _) in zip(problems, found, strict=True) for c in cs}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda source: toolchain(device).compile(name, family.entry, source), sources))
    click.echo(f"{len(sources)} sources compiled after {time.monotonic() - began:.0f} s")
    for workload, problem, matrix, (configs, invalid) in zip(
        workloads, problems, matrices, found, strict=True
    ):
        if time.monotonic() - began > limit:
            click.echo(f"{workload}: left out, time is up")
            continue
        row = measured(workload, problem, matrix, family, configs, device, l2) | {"invalid": invalid}
        rows.append(row)
        others = ", ".join(f"{contender} {us:.1f}" for contender, us in row["vendors_us"].items())
        click.echo(
            f"{workload}: {len(row['configs'])} configs, {len(row['failed'])} failed, {invalid} invalid; {others}"
        )
        for one in row["configs"][:show]:
            click.echo(f"  {one['us']:9.2f}  " + " ".join(f"{k}={v}" for k, v in one["config"].items()))
        write_results(device, f"sweep_{name}", rows, l2=l2)


def measured(
    workload: Workload,
    problem: SpmmProblem,
    matrix: CsrMatrix,
    family: AnyFamily,
    configs: list[Any],
    device: Device,
    l2: str,
) -> dict[str, Any]:
    """One workload: every config's median, fastest first, the guess's, and the best of cuBLAS and cuSPARSE."""
    bench = Bench(matrix, problem, device)

    def median(call: Any) -> float:
        return round(bench.vendors.clock.time(call, samples=SAMPLES, l2=L2(l2)).median_us, 3)

    vendors = {contender: median(call) for contender, call in bench.vendor_calls().items()}
    timed, failed = [], []
    for config in configs:
        values = config.to_dict()
        try:
            timed.append({"us": median(bench.variant(family.name, values)), "config": values})
        except (ValueError, SparsegenError) as error:
            failed.append({"config": values, "error": str(error)})
        bench.forget()
    guess_us = timed[0]["us"] if timed and timed[0]["config"] == configs[0].to_dict() else None
    bench.close()
    timed.sort(key=lambda one: one["us"])
    return {
        "workload": str(workload),
        "vendors_us": vendors,
        "guess_us": guess_us,
        "configs": timed,
        "failed": failed,
    }


if __name__ == "__main__":
    main()
