"""Time against n for the matrices that were measured with the most values of n."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import Colour
from sparsegen.report.content import Section
from sparsegen.report.kinds import Kind
from sparsegen.report.material import Material
from sparsegen.report.points import Point
from sparsegen.report.tables import Table

MOST = 6  # charts
LEAD = (
    "Time of one product against n, the columns of B. Each chart is one matrix, of its shape the one of middle "
    "density; both axes are logarithmic.",
)
SERIES: tuple[tuple[str, Colour, str, Callable[[Point], float | None]], ...] = (
    ("ours", Colour.BLUE, "o", lambda p: p.ours),
    ("ours, untuned", Colour.SKY, "v", lambda p: p.untuned),
    ("dense", Colour.ORANGE, "s", lambda p: p.dense.us if p.dense else None),
    ("best other sparse", Colour.GREEN, "^", lambda p: p.sparse.us if p.sparse else None),
)


def section(material: Material) -> Section:
    groups = matrices(material.points)
    charts = tuple(_chart(material, kind, points) for kind, points in groups[:MOST])
    missing = []
    if not groups:
        missing.append("No matrix was measured with two values of n.")
    if len(groups) > MOST:
        more = words.count(len(groups) - MOST, "more shape")
        missing.append(f"{more} with several n left out: those with the most values of n are shown.")
    return Section("scaling", "Time against n", LEAD, charts=charts, missing=tuple(missing))


def matrices(points: Sequence[Point]) -> list[tuple[Kind, list[Point]]]:
    """Matrices with their points by n, where there are at least two: of each shape one of middle density.

    Most values of n first, then most work.
    """
    groups: dict[tuple[Kind, str], dict[int, Point]] = {}
    for p in points:
        if p.ours is not None:
            groups.setdefault((p.kind, p.fingerprint), {}).setdefault(p.n, p)
    found = [(kind, [by_n[n] for n in sorted(by_n)]) for (kind, _), by_n in groups.items() if len(by_n) > 1]
    by_shape: dict[tuple[Kind, int, int], list[list[Point]]] = {}
    for kind, curve in found:
        by_shape.setdefault((kind, curve[0].m, curve[0].k), []).append(curve)
    middles = [(kind, _middle(curves)) for (kind, _, _), curves in by_shape.items()]
    return sorted(middles, key=lambda group: (-len(group[1]), -group[1][-1].flop))


def _middle(curves: list[list[Point]]) -> list[Point]:
    """The curve of median density among those with most values of n."""
    most = max(map(len, curves))
    longest = sorted((c for c in curves if len(c) == most), key=lambda curve: curve[0].density)
    return longest[len(longest) // 2]


def _chart(material: Material, kind: Kind, points: list[Point]) -> Chart:
    first = points[0]
    shape = f"{first.m:,} × {first.k:,}, {words.percent(1 - first.density)} zeros"

    def draw(panel: Panel) -> None:
        for label, colour, marker, time in SERIES:
            known = [(p.n, us) for p in points if (us := time(p)) is not None]
            if known:
                xs, ys = [float(n) for n, _ in known], [us for _, us in known]
                panel.line(xs, ys, colour=colour)
                tips = [f"{label}, n = {n}: {words.microseconds(us)}" for n, us in known]
                panel.points(xs, ys, tips, colour=colour, marker=marker, label=label)
        panel.labels("n, columns of B", "time, µs")
        panel.log_y(lambda value: f"{value:,.10g}")
        panel.log_x(words.tick)
        values = [p.n for p in points]
        if len(values) <= 8:
            panel.ticks_x([float(n) for n in values], [str(n) for n in values])

    name = str(kind)
    rows = tuple((str(p.n), *(words.microseconds(time(p)) for _, _, _, time in SERIES)) for p in points)
    return Chart(
        name=f"time-against-n-{kind.slug}-{first.fingerprint[:8]}",
        title=f"{name}: {shape}",
        caption=f"{material.inputs.device_name}, suite {first.suite}.",
        alt=f"Line plot: time against n of {name} with a matrix of {shape}, n from {points[0].n} to {points[-1].n}.",
        draw=draw,
        numbers=Table("The numbers", ("n", *(label for label, *_ in SERIES)), rows),
    )
