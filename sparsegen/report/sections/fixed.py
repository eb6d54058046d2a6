"""Gain of the tuned winner over settings that a paper fixed, by constants or by a rule (`Family.published`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparsegen.bench.results.summary import geometric
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily, Family
from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import MARKERS, SERIES
from sparsegen.report.content import Section
from sparsegen.report.kinds import Kind
from sparsegen.report.material import Material
from sparsegen.report.points import by_workload
from sparsegen.report.tables import Table
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Measurement, Workload

FIXED = tuple(family for family in families().values() if type(family).published is not Family.published)
SOURCES = "; ".join(dict.fromkeys(family.source for family in FIXED))
LEAD = (
    "The time of a paper's fixed settings, as this project's kernel of that paper runs them, over the time of the "
    f"tuned winner of any family, workload by workload. Settings from: {SOURCES}.",
)


@dataclass(frozen=True, slots=True)
class Gain:
    """The time of a family's published setting on a workload beside the winner's, in µs."""

    workload: Workload
    fixed_us: float
    winner_us: float
    winner: str

    @property
    def factor(self) -> float:
        return self.fixed_us / self.winner_us


def gains(measurements: Iterable[Measurement], family: AnyFamily) -> list[Gain]:
    """One gain for each workload on which a published setting was timed; of several the fastest counts."""
    found = []
    for workload, mine in by_workload(measurements).items():
        order = ranking.ranked(mine)
        published = (
            family.published(workload.problem) if isinstance(workload.problem, family.problem_type) else ()
        )
        fixed = [r.time_us for r in order if r.variant.config in published]
        if fixed:
            found.append(Gain(workload, min(fixed), order[0].time_us, order[0].variant.family))
    return found


def section(material: Material) -> Section:
    known = {family.name: gains(material.inputs.measurements, family) for family in FIXED}
    known = {name: some for name, some in known.items() if some}
    if not known:
        names = ", ".join(family.name for family in FIXED)
        missing = (f"The database holds no time of a fixed setting on this device: {names}.",)
        return Section("fixed", "Gain over fixed settings", LEAD, missing=missing)
    return Section("fixed", "Gain over fixed settings", LEAD, charts=(_chart(material, known),))


def _flop(gain: Gain) -> float:
    return float(max(1, gain.workload.problem.cost(gain.workload.features.nnz).flop))


def _label(workload: Workload) -> str:
    p = workload.problem
    zeros = words.percent(1 - workload.features.density)
    return f"{Kind.of(p)}, {words.sizes(p)}, {zeros} zeros"


def _chart(material: Material, known: dict[str, list[Gain]]) -> Chart:
    def draw(panel: Panel) -> None:
        for place, (name, some) in enumerate(known.items()):
            panel.points(
                [_flop(gain) for gain in some],
                [gain.factor for gain in some],
                [f"{_label(gain.workload)}: {words.factor(gain.factor)}" for gain in some],
                colour=SERIES[place],
                marker=MARKERS[place],
                label=name,
            )
        panel.labels("useful FLOP of the product", "times faster than the fixed setting")
        panel.log_x(words.tick)
        panel.log_y(lambda value: f"{value:g} ×")
        panel.level(y=1.0)

    told = "; ".join(
        f"over {name}: geometric mean {words.factor(geometric([g.factor for g in some]).value)}, "
        f"{words.count(len(some), 'workload')}"
        for name, some in known.items()
    )
    rows = tuple(
        (
            _label(gain.workload),
            name,
            gain.winner,
            words.microseconds(gain.fixed_us),
            words.microseconds(gain.winner_us),
            words.factor(gain.factor),
        )
        for name, some in known.items()
        for gain in some
    )
    head = ("workload, m × k × n", "family as published", "winner", "fixed", "tuned", "gain")
    return Chart(
        name="fixed-settings",
        title="Tuned winner over fixed settings",
        caption=f"{material.inputs.device_name}. {told}.",
        alt=f"Scatter plot: gain over fixed settings against the size of the product. {told}.",
        draw=draw,
        width=5.6,
        numbers=Table("The numbers", head, rows, text_columns=3),
    )
