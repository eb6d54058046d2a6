"""Are the same variants as fast through two versions of sparsegen? A process for each time, so that the memory of
earlier variants moves nothing; which version goes first changes with every round.

    pip install --no-deps --target build/older git+file://$PWD@COMMIT
    python -m benchmarks.versions COMMIT=build/older OTHER=build/newer        # two minutes for each round

Configs are this version's guesses, so that both time the same kernels. Raw output: ``versions.json``, which names both
commits as given.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks import timed_variant
from benchmarks.common import geometric_mean, write_results
from benchmarks.timed_variant import Variant
from sparsegen.backends import find_device
from sparsegen.kernels import family as family_named
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import as_csr
from sparsegen.operators import operator_named

SMALL, LARGE = (2048, 512), (4096, 4096)
WORKLOADS: tuple[tuple[str, tuple[int, int], float, dict[str, Any]], ...] = (
    ("csr_spmm", SMALL, 0.15, {"n": 256}),
    ("panel_spmm", LARGE, 0.2, {"n": 128}),
    ("mma_spmm", LARGE, 0.5, {"n": 256, "dtype": "float16", "layout": "column"}),
    ("block_spmm", LARGE, 0.5, {"n": 2048, "dtype": "float16"}),
    ("lane_stream_spmm", LARGE, 0.5, {"n": 8, "dtype": "float16", "layout": "column"}),
    ("uspmm_vec", LARGE, 0.4, {"n": 128, "dtype": "float16", "layout": "column"}),
    ("segment_spmm", LARGE, 0.2, {"n": 64}),
    ("scatter_spmm", LARGE, 0.2, {"n": 64}),
    ("csr_sddmm", LARGE, 0.2, {"operator": "sddmm", "k": 64}),
    ("mma_sddmm", LARGE, 0.2, {"operator": "sddmm", "k": 128, "dtype": "float16"}),
    ("row_softmax", LARGE, 0.2, {"operator": "sparse_softmax"}),
    (
        "fused_attention",
        LARGE,
        0.2,
        {"operator": "sparse_attention", "k": 64, "dtype": "float16", "batch": 8},
    ),
)


@click.command()
@click.argument("versions", nargs=2, metavar="COMMIT=FOLDER COMMIT=FOLDER")
@click.option("--device", "name", default="cuda", show_default=True)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="processes for each variant and version",
)
def main(versions: tuple[str, str], name: str, rounds: int) -> None:
    folders = dict(version.split("=", 1) for version in versions)
    device = find_device(name)
    variants = [pinned(*workload, device) for workload in WORKLOADS]
    found: dict[str, list[list[float]]] = {commit: [] for commit in folders}
    for round_ in range(rounds):
        for commit in found:
            found[commit].append([])
        for variant in variants:
            click.echo(f"round {round_ + 1} of {rounds}: {variant.family}")
            for commit in list(folders)[:: -1 if round_ % 2 else 1]:
                found[commit][-1].append(microseconds(variant, Path(folders[commit])))
        rows = [row(variant, found, index) for index, variant in enumerate(variants)]
        mean = geometric_mean(one["ratio"] for one in rows)
        write_results(device, "versions", rows, l2="warm", commits=list(folders), geometric_mean=mean)
    for one in rows:
        click.echo(f"{one['family']:18} {one['ratio']:.4f}")
    click.echo(f"second over first, geometric mean: {mean:.4f}")


def pinned(
    family: str, shape: tuple[int, int], density: float, options: dict[str, Any], device: Device
) -> Variant:
    """The family's own guess for the workload, so that every version times the same kernel."""
    workload = Variant(family, shape, density, options, {})
    fields = {key: value for key, value in options.items() if key != "operator"}
    problem = operator_named(options.get("operator", "spmm")).of(shape, **fields)
    guess = family_named(family).guess(problem, Features.of(as_csr(workload.matrix())), device)
    return Variant(family, shape, density, options, guess.to_dict())


def microseconds(variant: Variant, folder: Path) -> float:
    """The variant's time by the sparsegen in this folder.

    Raises:
        subprocess.CalledProcessError: that version failed; what it said is on standard error.
    """
    path = os.pathsep.join([str(folder.resolve()), *(entry for entry in sys.path if entry)])
    command = [sys.executable, "-P", str(Path(timed_variant.__file__))]
    environment = {**os.environ, "PYTHONPATH": path}
    given = json.dumps(asdict(variant))
    done = subprocess.run(
        command, env=environment, input=given, stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout)


def row(variant: Variant, found: dict[str, list[list[float]]], index: int) -> dict[str, Any]:
    medians = {commit: [round(runs[index], 3) for runs in each] for commit, each in found.items()}
    first, second = (statistics.median(runs) for runs in medians.values())
    return {
        "family": variant.family,
        "m": variant.shape[0],
        "k": variant.shape[1],
        "density": variant.density,
        "options": variant.options,
        "config": variant.config,
        "median_us": medians,
        "ratio": round(second / first, 4),
    }


if __name__ == "__main__":
    main()
