"""Samplers compared on recorded searches: how many trials until they come within 3 % of the best?

    python -m benchmarks.samplers record --db recorded.db -o recorded.json.xz      # on a GPU
    python -m benchmarks.samplers compare recorded.json.xz --plot samplers.svg     # anywhere
    python -m benchmarks.samplers model -o modelled.json.xz                        # made-up times, to try `compare`

`record` measures every candidate of eight spaces, some 5,700 variants. When its time is up it stops, and the same
command goes on where it was. `compare` runs every sampler from the same starts, and goes on with ``--keep``.
What our sampler expects of candidates is said by a cost model that is fitted to other matrix shapes alone.
"""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import matplotlib.figure
from rich.console import Console
from rich.table import Table

from benchmarks import pictures, recording
from benchmarks.fitting import fit_without
from benchmarks.modelled import modelled
from benchmarks.recording import Recording
from benchmarks.replay import WITHIN, Comparison, Replay
from benchmarks.sampler_counts import Count, Counts, key_of
from sparsegen import kernels
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Problem, SddmmProblem, SoftmaxProblem, SpmmProblem
from sparsegen.tuning.prediction.model import orders_configs
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning.space import Space
from sparsegen.tuning.tuner import Backend, Budget, tune
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store

VARIANTS_PER_SECOND = 16.5  # of `tune` on an H100 with 16 cores
H100 = Device(
    "nvidia-h100-80gb-hbm3-sm90", "NVIDIA H100 80GB HBM3", "cuda", (9, 0), 132, 232448, 233472, 50 << 20
)


@dataclass(frozen=True)
class Pair:
    """A workload, and the families whose configs are its space."""

    name: str
    problem: Problem
    families: tuple[str, ...]
    density: float = 0.1

    def matrix(self) -> CsrMatrix:
        rows, columns = self.problem.matrix_shape
        return random_uniform(rows, columns, self.density, seed=0)


F32, F16 = DType.FLOAT32, DType.FLOAT16
PAIRS = (
    Pair("csr_spmm fp32 n=256", SpmmProblem(2048, 512, 256, F32), ("csr_spmm",)),
    Pair("panel_spmm fp32 n=256", SpmmProblem(2048, 512, 256, F32), ("panel_spmm",)),
    Pair("uspmm_vec fp16 n=128", SpmmProblem(2048, 512, 128, F16), ("uspmm_vec",)),
    Pair("mma_spmm fp16 n=128", SpmmProblem(2048, 512, 128, F16), ("mma_spmm",)),
    Pair(
        "two spmm fp16 n=128",
        SpmmProblem(2048, 512, 128, F16),
        ("panel_spmm", "segment_spmm"),
    ),
    Pair(
        "four spmm fp16 n=8",
        SpmmProblem(2048, 512, 8, F16),
        ("mma_spmm", "panel_spmm", "uspmm", "uspmm_vec"),
    ),
    Pair("csr_sddmm fp32 k=64", SddmmProblem(2048, 512, 64, F32), ("csr_sddmm",)),
    Pair("row_softmax fp16", SoftmaxProblem(2048, 512, F16), ("row_softmax",)),
)


def space_of(pair: Pair, matrix: CsrMatrix, device: Device) -> Space:
    """Lists the space as `tune` would, beginning with the families' heuristic configs."""
    features = Workload.of(pair.problem, matrix).features
    families = [kernels.require_family(name, pair.problem) for name in pair.families]
    heuristics = [f.heuristic(pair.problem, features, device) for f in families]
    first = [
        c for f, c in zip(families, heuristics, strict=True) if f.suits(pair.problem, features, c, device)
    ]
    return Space.build(families, pair.problem, device, features=features, first=first)


def record_all(
    pairs: Sequence[Pair],
    device: Device,
    db: Path,
    output: Path,
    seconds: float,
    backend: Backend | None = None,
) -> list[str]:
    """Go on with the exhaustive searches, and write those that are complete after each.

    Returns:
        The names of those that are not complete yet.

    Raises:
        click.ClickException: the file holds searches of another device.
    """
    ends = time.monotonic() + seconds
    done = {r.name: r for r in recording.read(output)} if output.exists() else {}
    if others := {r.device.name for r in done.values() if r.device.key != device.key}:
        raise click.ClickException(f"{output} is of {', '.join(others)}, not of {device.name}")
    with Store.open(db) as store:
        for pair in pairs:
            left = ends - time.monotonic()
            if pair.name in done or left <= 0:
                continue
            result = tune(
                pair.matrix(),
                pair.problem,
                device=device,
                store=store,
                families=pair.families,
                budget=Budget(trials=10**6, seconds=left),
                baselines=False,
                backend=backend,
            )
            click.echo(f"{pair.name}: {result.counts.tried} of {result.space_size} in {result.seconds:.0f} s")
            if result.counts.tried >= result.space_size:
                mine = [
                    m
                    for m in store.measurements(result.workload, device)
                    if m.variant.family in pair.families
                ]
                done[pair.name] = Recording.of(pair.name, mine)
                recording.write(output, done.values())
            if result.was_interrupted:
                break
    return [pair.name for pair in pairs if pair.name not in done]


def compare_all(
    recordings: Sequence[Recording],
    samplers: Sequence[SamplerName],
    seeds: int,
    most: int,
    counts: Counts,
    expected: Mapping[str, Sequence[float]],
) -> Comparison:
    """Run every sampler from every start, but for the searches that are known.

    Args:
        expected: predicted times of each recording's candidates; recordings that it lacks have none.
    """
    replays = [Replay(r, expected.get(r.name, ())) for r in recordings]
    for seed in range(seeds):
        for replay in replays:
            r = replay.recording
            for name in samplers:
                key = key_of(r, name, seed, r.name in expected)
                if not counts.is_missing(key, most):
                    continue
                began = time.process_time()
                trials = replay.trials(name, seed, most=most)
                took = time.process_time() - began
                found = int(trials) if math.isfinite(trials) else None
                counts.add(Count(*key, most, found, round(took, 3)))
                needed = f"not within {most}" if found is None else found
                click.echo(f"start {seed + 1} of {seeds}, {r.name}, {name}: {needed}", err=True)
    keys = {
        (r.name, name): [key_of(r, name, seed, r.name in expected) for seed in range(seeds)]
        for r in recordings
        for name in samplers
    }
    return counts.comparison(keys, most)


def held_out_times(recordings: Sequence[Recording]) -> dict[str, list[float]]:
    """Predicts candidates' times by a cost model that saw no workload of such a matrix shape, in µs.

    Recordings for which searches use no predictions (`orders_configs`) are left out.
    """
    from benchmarks.cost_model import evidence

    shapes = {r.workload.problem.matrix_shape for r in recordings}
    variants, usual = evidence()
    model = fit_without(variants, usual, lambda v: v.workload.problem.matrix_shape in shapes)
    return {
        r.name: [model.predicted_us(r.workload, t.config, r.device) for t in r.tried]
        for r in recordings
        if orders_configs(r.workload.problem)
    }


def table(comparison: Comparison) -> Table:
    """Median trials of each space and sampler, and their geometric means."""
    shown = Table("space", *comparison.samplers, box=None)
    for space in comparison.trials:
        shown.add_row(space, *(f"{comparison.median(space, name):g}" for name in comparison.samplers))
    shown.add_row("geometric mean", *(f"{comparison.typical(name):.1f}" for name in comparison.samplers))
    shown.add_row(
        "ms for a proposal", *(f"{1e3 * comparison.seconds[name]:.1f}" for name in comparison.samplers)
    )
    return shown


def plot(comparison: Comparison, title: str, path: Path) -> None:
    """Plots the share of searches that are within 3 %, over the trials."""
    figure = matplotlib.figure.Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name in comparison.samplers:
        counts = sorted(count for found in comparison.trials.values() for count in found[name])
        reached = [count for count in counts if math.isfinite(count)]
        shares = [(i + 1) / len(counts) for i in range(len(reached))]
        axes.step([1, *reached], [0, *shares], where="post", label=name)
    axes.set(xscale="log", xlabel="trials", ylabel=f"searches within {WITHIN:.0%} of the best", title=title)
    axes.legend()
    pictures.save(figure, path)


@click.group()
def main() -> None:
    """Record exhaustive searches, and compare samplers on them."""


@main.command()
@click.option("--db", type=click.Path(path_type=Path), required=True, help="Database that it goes on from.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
@click.option("--limit", default=540.0, help="Seconds after which it stops.")
@click.option(
    "--space",
    "spaces",
    multiple=True,
    type=click.Choice([pair.name for pair in PAIRS]),
    help="Only this one; may be repeated. Default: all eight.",
)
def record(db: Path, output: Path, limit: float, spaces: tuple[str, ...]) -> None:
    """Measure every candidate of spaces on the GPU; those that the output file holds stay as they are."""
    device = find_device("cuda")
    wanted = [pair for pair in PAIRS if not spaces or pair.name in spaces]
    sizes = {pair.name: len(space_of(pair, pair.matrix(), device).candidates) for pair in wanted}
    total = sum(sizes.values())
    click.echo(f"{total} variants in {len(sizes)} spaces, some {total / VARIANTS_PER_SECOND:.0f} s in all")
    if missing := record_all(wanted, device, db, output, limit):
        raise click.ClickException(f"not complete: {', '.join(missing)}; the same command goes on")
    click.echo(f"all recorded in {output}, {output.stat().st_size / 1024:.0f} KiB")


@main.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True)
def model(output: Path) -> None:
    """Make up the times of the same eight spaces, to try out `compare`: nothing is measured."""
    made = []
    for pair in PAIRS:
        matrix = pair.matrix()
        configs = space_of(pair, matrix, H100).candidates
        made.append(modelled(pair.name, configs, pair.problem, matrix, H100))
    recording.write(output, made)
    click.echo(f"{sum(len(r.tried) for r in made)} made-up times in {output}")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--sampler",
    "names",
    multiple=True,
    type=click.Choice([n.value for n in SamplerName]),
    help="Default: all there are.",
)
@click.option("--seeds", default=20, help="Starts of each space.")
@click.option("--most", default=400, help="Trials after which a search is given up.")
@click.option("--space", "spaces", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file of searches that were made: none is made twice. Delete it when a sampler was changed.",
)
@click.option("--unaided", is_flag=True, help="Keep from our sampler what the cost model expects.")
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="An SVG file.")
@click.option("--json", "as_json", is_flag=True)
def compare(
    file: Path,
    names: tuple[str, ...],
    seeds: int,
    most: int,
    spaces: tuple[str, ...],
    keep: Path | None,
    unaided: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Say how many trials each sampler needs, and whether ours stays the default."""
    recordings = [r for r in recording.read(file) if not spaces or r.name in spaces]
    if not recordings:
        raise click.ClickException(f"{file} holds no such space")
    wanted = [SamplerName(name) for name in names] or list(SamplerName)
    if importlib.util.find_spec("torch") is None and SamplerName.GP in wanted and not names:
        click.echo("gp is not compared: it needs PyTorch", err=True)
        wanted.remove(SamplerName.GP)
    made_up = any(r.is_modelled for r in recordings)
    title = "made-up times" if made_up else recordings[0].device.name
    aided = SamplerName.CANDIDATES in wanted and not unaided
    expected = held_out_times(recordings) if aided else {}
    comparison = compare_all(recordings, wanted, seeds, most, Counts(keep), expected)
    judged = SamplerName.CANDIDATES in wanted and len(wanted) > 1
    conclusion = comparison.conclusion if judged else ""
    if picture is not None:
        plot(comparison, title, picture)
    if as_json:
        document = {
            "times": title,
            "seeds": seeds,
            "most": most,
            "trials": {
                space: {n: [c if math.isfinite(c) else None for c in counts] for n, counts in found.items()}
                for space, found in comparison.trials.items()
            },
            "typical": {name: round(comparison.typical(name), 2) for name in comparison.samplers},
            "ms_for_a_proposal": {name: round(1e3 * s, 2) for name, s in comparison.seconds.items()},
            "conclusion": conclusion,
        }
        click.echo(json.dumps(document, indent=1))
        return
    Console().print(table(comparison))
    click.echo(f"{title}, {seeds} starts: {conclusion}")


if __name__ == "__main__":
    main()
