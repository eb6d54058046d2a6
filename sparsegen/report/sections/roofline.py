"""Roofline: useful operations per second against useful operations per byte (Williams et al., CACM 2009)."""

from __future__ import annotations

import math

from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import Colour
from sparsegen.report.content import Section
from sparsegen.report.kinds import Kind
from sparsegen.report.material import Material, by_kind, sizes_n
from sparsegen.report.points import Point
from sparsegen.report.tables import Table

LEAD = (
    "Useful operations per second (two for each nonzero and column) against useful operations per byte, each operand "
    "moved once. No kernel can be above the roof: copy bandwidth on the left, the rate of a large dense product on "
    "the right, both measured in the same run. Hollow: the best other sparse routine.",
)


def section(material: Material) -> Section:
    charts = []
    for kind, points in by_kind(material.points).items():
        known = [p for p in points if p.ours and p.flop and p.bytes]
        if known:
            charts.append(_chart(material, kind, known))
    missing = []
    if not charts:
        missing.append("No workload has our time.")
    elif material.rates is None:
        missing.append("No roof is drawn: rates of the device are measured by sparsegen bench on a GPU.")
    return Section("roofline", "Roofline", LEAD, charts=tuple(charts), missing=tuple(missing))


def _chart(material: Material, kind: Kind, points: list[Point]) -> Chart:
    intensities = [p.flop / p.bytes for p in points]
    rates = material.rates
    peak = None if rates is None else rates.flop_per_s_of(points[0].problem.multiplied)

    def draw(panel: Panel) -> None:
        for suite in material.suites:
            mine = [p for p in points if p.suite == suite]
            if not mine:
                continue
            colour, marker = material.look(kind, suite)
            others = [p for p in mine if p.sparse]
            panel.points(
                [p.flop / p.bytes for p in others],
                [_gflops(p.flop, p.sparse.us if p.sparse else None) for p in others],
                [f"{p.label}: {p.sparse.baseline if p.sparse else ''}" for p in others],
                colour=Colour.MUTED,
                marker=marker,
                hollow=True,
                size=16,
            )
            panel.points(
                [p.flop / p.bytes for p in mine],
                [_gflops(p.flop, p.ours) for p in mine],
                [f"{p.label}: {words.figure(_gflops(p.flop, p.ours))} GFLOP/s" for p in mine],
                colour=colour,
                marker=marker,
                label=suite,
            )
        if rates is not None:
            low, high = min(intensities) / 1.6, max(intensities) * 1.6
            slope = rates.copy_bytes_per_s / 1e9
            top = math.inf if peak is None else peak / 1e9
            ridge = top / slope
            xs = sorted({low, min(max(ridge, low), high), high})
            panel.line(
                xs, [min(x * slope, top) for x in xs], colour=Colour.INK, width=1.6, label="roof, measured"
            )
        panel.labels("useful FLOP per byte", "useful GFLOP/s")
        panel.log_x(words.tick)
        panel.log_y(lambda value: f"{value:,.10g}")

    name = str(kind)
    caption = f"{material.inputs.device_name}, {sizes_n(points)}."
    if rates is not None:
        caption += f" Roof: {words.figure(rates.copy_bytes_per_s / 1e9)} GB/s"
        caption += (
            f", {words.figure(peak / 1e12)} TFLOP/s dense." if peak else "; no dense rate of this type."
        )
    return Chart(
        name=f"roofline-{kind.slug}",
        title=f"{name}: roofline",
        caption=caption,
        alt=f"Roofline plot of {words.count(len(points), 'workload')} of {name}, both axes logarithmic.",
        draw=draw,
        numbers=_numbers(points),
    )


def _gflops(flop: int, us: float | None) -> float:
    return flop / us / 1e3 if us else math.nan


def _numbers(points: list[Point]) -> Table:
    rows = tuple(
        (
            p.label,
            words.figure(p.flop / p.bytes),
            words.figure(_gflops(p.flop, p.ours)),
            words.figure(_gflops(p.flop, p.sparse.us if p.sparse else None)),
            words.figure(p.bytes / (p.ours or math.nan) / 1e3),
        )
        for p in sorted(points, key=lambda p: p.flop / p.bytes)
    )
    head = (
        "workload, m × k × n",
        "FLOP per byte",
        "ours, GFLOP/s",
        "best other sparse, GFLOP/s",
        "ours, GB/s",
    )
    return Table("The numbers", head, rows)
