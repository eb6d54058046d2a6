"""Changes of untuned choices by packaged results, on problems whose file these were made without.

    python -m benchmarks.seed_choices variants_27183.json.xz variants_9101.json.xz ... [--operator dsd] [--each]

Of every file in turn (databases, exports, results of ``sparsegen bench``; one for each seed that problems were drawn
with) the packaged rows are made of all others (`make_seeds.chosen`), and each of its workloads with several measured
configs is looked up twice on the described device that was measured: from the packaged results of other devices alone,
and from these and such rows. Workloads of equal sizes are hidden too, whichever file they are in. Two figures each:
the chosen config's time over the fastest known one's, where both chosen configs were measured; and the same of the
best-ranked config among those that were (rows with `MANY` or more), which every row has. No GPU.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks.make_seeds import chosen, grouped, is_valid, latest
from benchmarks.measured_files import content_of
from sparsegen.bench.results.summary import geometric
from sparsegen.bench.run.unseen import Without
from sparsegen.dispatch.choice import choose, near_enough
from sparsegen.dispatch.evidence import evidence_of
from sparsegen.dispatch.neighbours import predict
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.dispatch.places import nearest
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.tuning.prediction.targets import described
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Measurement, Workload
from sparsegen.tuning_db.seeds_reader import packaged

MANY = 6  # measured configs of a row whose order is judged
SPARSE = DispatchOptions(dense=Dense.NEVER)


@dataclass(frozen=True)
class Judged:
    """A row looked up without and with packaged rows of its device.

    Attributes:
        chosen, ranked: time over the fastest known one's without and with them; NaN where it is not known.
        moved: the two choose different configs.
    """

    workload: Workload
    chosen: tuple[float, float]
    ranked: tuple[float, float]
    moved: bool


def best_ranked(workload: Workload, device: Device, layer: Layer, configs: Iterable[Config]) -> Config:
    """The first of these configs by the cost model and what is near."""
    problem, features = workload.problem, workload.features
    known = layer.list_workloads(kind=problem.kind, like=device)
    asked = near_enough(nearest(problem, features, device, known), device)
    near = [evidence_of(neighbour, device, layer) for neighbour in asked]
    measured = set(configs)
    found = predict(workload, device, near, lambda config: config in measured)
    if found:
        return found[0].config
    return min(measured, key=lambda c: family_of(c).analytic_us(problem, features, c, device))


def judged(of: Workload, device: Device, times: Mapping[Config, float], layers: Sequence[Layer]) -> Judged:
    """Looks a workload up in both layers."""
    best = min(times.values())
    configs = [choose(of, device, layer, SPARSE).config for layer in layers]
    without, with_rows = (times.get(config, math.nan) / best for config in configs)
    ranked = [math.nan, math.nan]
    if len(times) >= MANY:
        ranked = [times[best_ranked(of, device, layer, times)] / best for layer in layers]
    return Judged(of, (without, with_rows), (ranked[0], ranked[1]), configs[0] != configs[1])


def judge(contents: Sequence[Content], operators: Sequence[str]) -> Iterable[Judged]:
    """Judges each file's rows by the rows of the others."""
    every = [_of_described(content) for content in contents]
    keys = {m.device.key for content in every for m in content.measurements}
    others = [m for m in packaged().all_measurements() if m.device.key not in keys]
    dense = [b for b in packaged().all_baselines() if b.device.key not in keys]
    before = MemoryLayer(others, dense)
    for left_out in every:
        rest = [content for content in every if content is not left_out]
        kept = [m for group in _grouped(rest) for m in chosen(group, 12)]
        baselines = latest(b for content in rest for b in content.baselines)
        after = MemoryLayer([*others, *kept], [*dense, *baselines])
        for group in _grouped([left_out]):
            of, device = group[0].workload, group[0].device
            times = {variant.config: found.time_us for variant, found in ranking.times(group).items()}
            if len(times) < 2 or (operators and of.problem.operator not in operators):
                continue

            def hides(other: Workload, of: Workload = of) -> bool:
                return other.problem.operator == of.problem.operator and (
                    other.fingerprint == of.fingerprint or other.problem.sizes == of.problem.sizes
                )

            yield judged(of, device, times, [Without(before, hides), Without(after, hides)])


def _of_described(content: Content) -> Content:
    """Returns it with devices as they are described, so that what one machine told of itself does not matter."""
    return Content(
        tuple(replace(m, device=described(m.device)) for m in content.measurements),
        tuple(replace(b, device=described(b.device)) for b in content.baselines),
    )


def _grouped(contents: Iterable[Content]) -> list[list[Measurement]]:
    """Groups what may be packaged, by workload and device."""
    every = (m for content in contents for m in content.measurements)
    return grouped(m for m in every if m.sample is not None and is_valid(m))


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--operator", "operators", multiple=True, help="default: all")
@click.option("--each", is_flag=True, help="Every row whose choice they change.")
def main(files: tuple[Path, ...], operators: tuple[str, ...], each: bool) -> None:
    found: dict[str, list[Judged]] = defaultdict(list)
    for one in judge([content_of(file) for file in files], operators):
        found[one.workload.problem.operator].append(one)
        if each and one.moved:
            told = "; ".join("{:.2f}, then {:.2f}".format(*pair) for pair in (one.chosen, one.ranked))
            click.echo(f"{one.workload.problem}: {told}")
    click.echo(
        "| operator | rows | other choices | known | chosen without, with | rows | ranked without, with |"
    )
    click.echo("|---|---|---|---|---|---|---|")
    for operator, rows in sorted(found.items()):
        moved = sum(one.moved for one in rows)
        parts = [
            [pair for pair in pairs if not math.isnan(sum(pair))]
            for pairs in ([one.chosen for one in rows], [one.ranked for one in rows])
        ]
        told = " | ".join(f"{len(pairs)} | {_told(pairs)}" for pairs in parts)
        click.echo(f"| {operator} | {len(rows)} | {moved} | {told} |")


def _told(pairs: Sequence[tuple[float, float]]) -> str:
    """Means, and the worst in parentheses."""
    if not pairs:
        return "–"
    return ", ".join(f"{geometric(side).value:.3f} ({max(side):.2f})" for side in zip(*pairs, strict=True))


if __name__ == "__main__":
    main()
