"""Dispatch regret: how much slower the untuned choice is than the tuned winner."""

from __future__ import annotations

from collections.abc import Sequence

from sparsegen.bench.results.summary import geometric
from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import MARKERS, SERIES
from sparsegen.report.content import Section
from sparsegen.report.material import Material, by_kind
from sparsegen.report.points import Point
from sparsegen.report.tables import Table

LEAD = (
    "The time of what dispatch chooses with nothing tuned by the user, over that of the tuned winner. The curve says "
    "for which share of the workloads the regret is at most that.",
)


def regret(point: Point) -> float | None:
    return point.untuned / point.ours if point.untuned and point.ours else None


def section(material: Material) -> Section:
    groups = {
        str(kind): known
        for kind, points in by_kind(material.points).items()
        if (known := [p for p in points if regret(p) is not None])
    }
    if not groups:
        missing = (
            "No row has both a tuned and an untuned time of ours; sparsegen bench with --tune measures both.",
        )
        return Section("regret", "Dispatch regret", LEAD, missing=missing)
    return Section("regret", "Dispatch regret", LEAD, charts=(_chart(material, groups),))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def _chart(material: Material, groups: dict[str, list[Point]]) -> Chart:
    ordered = {name: sorted(points, key=lambda p: regret(p) or 0.0) for name, points in groups.items()}
    values = {name: [regret(p) or 0.0 for p in points] for name, points in ordered.items()}

    def draw(panel: Panel) -> None:
        for place, (name, regrets) in enumerate(values.items()):
            colour = SERIES[place % len(SERIES)]
            shares = [(i + 1) / len(regrets) for i in range(len(regrets))]
            panel.line(regrets, shares, colour=colour, steps=True)
            tips = [f"{p.label}: {words.factor(regret(p))}" for p in ordered[name]]
            panel.points(regrets, shares, tips, colour=colour, marker=MARKERS[place], size=12, label=name)
        panel.level(x=1.0)
        panel.labels("untuned time over tuned time", "share of the workloads")
        panel.percent_y()

    everything = sorted(value for regrets in values.values() for value in regrets)
    mean, median, worst = geometric(everything).value, quantile(everything, 0.5), everything[-1]
    told = f"Geometric mean {words.factor(mean)}, median {words.factor(median)}, worst {words.factor(worst)}"
    rows = tuple(
        (
            name,
            str(len(regrets)),
            words.factor(geometric(regrets).value),
            *(words.factor(quantile(regrets, share)) for share in (0.5, 0.9)),
            words.factor(regrets[-1]),
            ordered[name][-1].label,
        )
        for name, regrets in values.items()
    )
    head = ("workloads", "count", "geometric mean", "median", "90 %", "worst", "the worst")
    return Chart(
        name="regret-distribution",
        title="Regret of untuned dispatch",
        caption=f"{material.inputs.device_name}, {words.count(len(everything), 'workload')}. {told}.",
        alt=f"Cumulative distribution of the dispatch regret. {told}.",
        draw=draw,
        width=5.6,
        numbers=Table("The numbers", head, rows),
    )
