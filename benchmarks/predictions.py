"""Hold predicted times against the packaged seeds, or another export.

    python -m benchmarks.predictions [export.json]

For each family it prints the predicted over the measured time of its heuristic config, if that was measured. For each
operator it prints how much slower the heuristic config of the family that the predictions put first is than the best
family's, over the workloads that have measured heuristic configs of several families (if one was not measured, the
family's fastest config stands in). docs/notes/predicted-times.md keeps the result.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from sparsegen.kernels import families
from sparsegen.kernels.base import Device
from sparsegen.tuning_db.exchange import load
from sparsegen.tuning_db.layer import with_rates
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds


@dataclass(frozen=True)
class Known:
    """A workload with the times of families in µs: of their heuristic configs, else of the fastest that is known."""

    workload: Workload
    device: Device
    heuristics: dict[str, float]
    times: dict[str, float]

    def predicted_us(self, name: str) -> float:
        return families()[name].predicted_us(self.workload.problem, self.workload.features, self.device)

    def suitable(self) -> list[str]:
        """The families whose heuristic may run here."""
        of, device = self.workload, self.device
        found = []
        for name in self.times:
            family = families()[name]
            heuristic = family.heuristic(of.problem, of.features, device)
            if family.suits(of.problem, of.features, heuristic, device):
                found.append(name)
        return found


def known(layer: MemoryLayer) -> Iterator[Known]:
    """Every workload on which a variant gave right results."""
    for tuned in layer.list_workloads():
        of, device = tuned.workload, with_rates(tuned.device, layer)
        heuristics: dict[str, float] = {}
        fastest: dict[str, float] = {}
        for m in layer.measurements(of, device):
            if m.sample is None or m.variant.family not in families():
                continue
            family, time_us = families()[m.variant.family], m.sample.median_us
            fastest[family.name] = min(time_us, fastest.get(family.name, math.inf))
            heuristic = family.heuristic(of.problem, of.features, device)
            if m.variant.config == heuristic and (m.final or family.name not in heuristics):
                heuristics[family.name] = time_us
        if fastest:
            yield Known(of, device, heuristics, fastest | heuristics)


@click.command()
@click.argument("export", required=False, type=click.Path(path_type=Path, exists=True))
def main(export: Path | None) -> None:
    layer = seeds()
    if export is not None:
        content = load(export.read_text(encoding="utf-8"), export.name)
        layer = MemoryLayer(content.measurements, content.baselines, content.rates)
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    slowdowns: dict[str, list[float]] = defaultdict(list)
    for one in known(layer):
        operator = one.workload.problem.operator
        for name, time_us in one.heuristics.items():
            ratios[operator, name].append(one.predicted_us(name) / time_us)
        names = one.suitable()
        if len(names) > 1:
            picked = min(names, key=one.predicted_us)
            slowdowns[operator].append(one.times[picked] / min(one.times[name] for name in names))
    click.echo("| operator | family | heuristics measured | median | geometric mean | spread | 5 % | 95 % |")
    click.echo("|---|---|---|---|---|---|---|---|")
    for (operator, name), found in sorted(ratios.items()):
        logs = [math.log(ratio) for ratio in found]
        low, high = (_quantile(found, share) for share in (0.05, 0.95))
        click.echo(
            f"| {operator} | {name} | {len(found)} | {statistics.median(found):.2f} "
            f"| {math.exp(statistics.fmean(logs)):.2f} | {math.exp(statistics.pstdev(logs)):.2f} "
            f"| {low:.2f} | {high:.2f} |"
        )
    click.echo("\n| operator | workloads | within 10 % | within 25 % | geometric mean | worst |")
    click.echo("|---|---|---|---|---|---|")
    for operator, found in sorted(slowdowns.items()):
        within = [sum(s <= most for s in found) / len(found) for most in (1.1, 1.25)]
        click.echo(
            f"| {operator} | {len(found)} | {within[0]:.1%} | {within[1]:.1%} "
            f"| {math.exp(statistics.fmean(map(math.log, found))):.3f} | {max(found):.1f} |"
        )


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


if __name__ == "__main__":
    main()
