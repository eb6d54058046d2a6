"""Speedup over dense against sparsity, with the crossover marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import Colour
from sparsegen.report.content import Section
from sparsegen.report.kinds import Kind
from sparsegen.report.material import Material, by_kind, sizes_n
from sparsegen.report.points import Point
from sparsegen.report.tables import Table

SAME_DENSITY = 1.02  # matrices this near in density stand for one sparsity
# The first are kept where many do not fit.
TICKS = 0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.8, 0.95, 0.98, 0.7, 0.3
MOST_TICKS = 10
LEAD = (
    "How many times faster than the dense product ours is, against the share of zeros. Lines join matrices of one "
    "shape. A shape's crossover is the sparsity from which on ours is faster at every sparsity measured, "
    "interpolated between two of them.",
)


def section(material: Material) -> Section:
    charts, missing = [], []
    for kind, points in by_kind(material.points).items():
        known = [p for p in points if p.over_dense is not None and p.density > 0]
        if known:
            charts.append(_chart(material, kind, known))
        elif all(p.over_dense is None for p in points):
            missing.append(f"{kind}: no workload has both our time and a dense one.")
    return Section("speedup", "Speedup against sparsity", LEAD, charts=tuple(charts), missing=tuple(missing))


@dataclass(frozen=True, slots=True)
class Crossover:
    """Sparsity at which a shape's curve crosses 1, or one of the two outcomes if it does not."""

    sparsity: float | None
    always_faster: bool = False


def shapes(points: Sequence[Point]) -> list[list[tuple[float, float]]]:
    """Pairs (density, speedup over dense), densest first, by kind, suite and shape of at least two sparsities.

    Matrices of almost equal density count as one with the geometric mean of their speedups.
    """
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for p in points:
        if p.over_dense is not None and p.density > 0:
            groups.setdefault((p.kind, p.suite, p.m, p.k, p.n), []).append((p.density, p.over_dense))
    curves = [_merged(sorted(group, reverse=True)) for group in groups.values()]
    return [curve for curve in curves if len(curve) > 1]


def _merged(curve: list[tuple[float, float]]) -> list[tuple[float, float]]:
    runs: list[list[tuple[float, float]]] = []
    for place in curve:
        if runs and runs[-1][0][0] <= place[0] * SAME_DENSITY:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [(_mean([d for d, _ in run]), _mean([s for _, s in run])) for run in runs]


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def crossover(curve: Sequence[tuple[float, float]]) -> Crossover:
    """Finds where a curve of (density, speedup), densest first, rises above 1 for good; log-log interpolation."""
    first = len(curve)
    while first and curve[first - 1][1] >= 1:
        first -= 1
    if first == len(curve):
        return Crossover(None)
    if first == 0:
        return Crossover(None, always_faster=True)
    (d0, s0), (d1, s1) = curve[first - 1], curve[first]
    share = math.log(s0) / math.log(s0 / s1)
    return Crossover(1 - math.exp(math.log(d0) + share * math.log(d1 / d0)))


def _chart(material: Material, kind: Kind, points: list[Point]) -> Chart:
    curves = shapes(points)
    found = [crossover(curve) for curve in curves]
    crossings = sorted(c.sparsity for c in found if c.sparsity is not None)
    middle = median(crossings) if crossings else None

    def draw(panel: Panel) -> None:
        for curve in curves:
            panel.line([d for d, _ in curve], [s for _, s in curve], colour=Colour.MUTED, width=0.5)
        for suite in material.suites:
            mine = [p for p in points if p.suite == suite]
            if mine:
                colour, marker = material.look(kind, suite)
                panel.points(
                    [p.density for p in mine],
                    [p.over_dense or math.nan for p in mine],
                    [f"{p.label}: {words.factor(p.over_dense)}" for p in mine],
                    colour=colour,
                    marker=marker,
                    label=suite,
                )
        panel.labels("zeros in the matrix", "times faster than dense")
        panel.log_y(lambda value: f"{value:g} ×")
        panel.log_x(words.tick)
        _sparsity_axis(panel, [p.density for p in points])
        panel.level(y=1.0)
        if crossings:
            panel.points(
                [1 - s for s in crossings],
                [1.0] * len(crossings),
                [f"crossover at {words.percent(s)} zeros" for s in crossings],
                colour=Colour.INK,
                marker="D",
                hollow=True,
                size=16,
                label="crossover of a shape",
            )
        if middle is not None:
            panel.level(x=1 - middle, text=f"median {words.percent(middle)}")

    always, never = sum(c.always_faster for c in found), len(found) - len(crossings)
    never -= always
    name = str(kind)
    told = _told(crossings, always, never)
    return Chart(
        name=f"speedup-{kind.slug}",
        title=f"{name}: over dense",
        caption=f"{material.inputs.device_name}, {sizes_n(points)}. {told}",
        alt=f"Scatter plot: speedup of {name} over dense against sparsity. {told}",
        draw=draw,
        numbers=_numbers(points),
    )


def _told(crossings: list[float], always: int, never: int) -> str:
    if not crossings and not always and not never:
        return "No shape was measured at two sparsities, so there is no crossover to show."
    parts = []
    if crossings:
        span = f"{words.percent(crossings[0])} to {words.percent(crossings[-1])}"
        parts.append(
            f"{words.count(len(crossings), 'shape')} crossing at {span}, median {words.percent(median(crossings))}"
        )
    if always:
        parts.append(f"{always} faster at every sparsity measured")
    if never:
        parts.append(f"{never} not faster at the highest sparsity measured")
    return "Of the shapes: " + "; ".join(parts) + "."


def _sparsity_axis(panel: Panel, densities: Sequence[float]) -> None:
    """Sparsity from left to right, spaced by the logarithm of the density."""
    low, high = min(densities) / 1.25, min(1.0, max(densities) * 1.25)
    gap = math.log(high / low) / MOST_TICKS
    ticks: list[float] = []
    for s in TICKS:
        if low <= 1 - s <= high and all(abs(math.log((1 - s) / (1 - t))) >= gap for t in ticks):
            ticks.append(s)
    panel.ticks_x([1 - s for s in ticks], [f"{100 * s:g} %" for s in ticks])
    panel.limits_x(high, low)


def _numbers(points: Sequence[Point]) -> Table:
    rows = tuple(
        (
            p.label,
            words.microseconds(p.ours),
            words.microseconds(p.dense.us if p.dense else None),
            words.factor(p.over_dense),
            words.microseconds(p.sparse.us if p.sparse else None),
            words.factor(p.over_sparse),
        )
        for p in sorted(points, key=lambda p: (p.suite, p.m, p.k, p.n, p.density))
    )
    head = ("workload, m × k × n", "ours", "dense", "over dense", "best other sparse", "over it")
    return Table("The numbers", head, rows)
