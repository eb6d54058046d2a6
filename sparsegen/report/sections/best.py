"""Heat map of the winning family and variant over rows, columns of B and sparsity."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sparsegen.report import words
from sparsegen.report.canvas import Chart, HeatCell, Panel
from sparsegen.report.catalogue import Entry
from sparsegen.report.colours import SERIES, Colour
from sparsegen.report.content import Section
from sparsegen.report.kinds import Kind
from sparsegen.report.material import Material, by_kind
from sparsegen.report.points import Point
from sparsegen.report.tables import Link, Table

MOST = 12  # charts
SPARSITIES = (0.3, 0.6, 0.75, 0.85, 0.925, 0.97, 0.99)  # between them the columns
N_LIMITS = (1, 32, 128, 512, math.inf)  # each chart has the n up to one of them
LEAD = (
    "Which family won (colour) and with which config (the variant's number, a link to the table of variants). Where a "
    "cell holds several workloads it shows the most frequent winner, and of how many it won.",
)


def section(material: Material) -> Section:
    won = [p for p in material.points if p.variant and p.ours]
    groups: list[tuple[Kind, float, list[Point]]] = []
    for kind, points in by_kind(won).items():
        for limit in N_LIMITS:
            some = [p for p in points if _n_limit(p.n) == limit]
            if some:
                groups.append((kind, limit, some))
    shown = sorted(groups, key=lambda group: -len(group[2]))[:MOST]
    charts = tuple(
        _chart(material, family_colours(won, group[0][0]), *group) for group in groups if group in shown
    )
    missing = []
    if not groups:
        missing.append("No workload has a winner whose family and config are known.")
    if len(groups) > MOST:
        rest = sum(len(points) for _, _, points in groups) - sum(len(points) for _, _, points in shown)
        missing.append(
            f"{len(groups) - MOST} smaller maps with {words.count(rest, 'workload')} left out; the table of "
            "variants has all of them."
        )
    return Section("best", "Best variants", LEAD, charts=charts, missing=tuple(missing))


def _n_limit(n: int) -> float:
    return next(limit for limit in N_LIMITS if n <= limit)


def column(sparsity: float) -> int:
    """The number of a sparsity's column, from 0."""
    return sum(sparsity >= edge for edge in SPARSITIES)


def column_names() -> list[str]:
    edges = [f"{100 * edge:g}" for edge in SPARSITIES]
    return [f"< {edges[0]}", *(f"{a}–{b}" for a, b in itertools.pairwise(edges)), f"≥ {edges[-1]}"]


def family_colours(points: Iterable[Point], operator: str) -> dict[str, Colour]:
    """A colour for each family that won somewhere, the same in all charts of the operator."""
    families = sorted({p.variant.family_name for p in points if p.variant and p.operator == operator})
    return dict(zip(families, itertools.cycle(SERIES), strict=False))


def _chart(
    material: Material, colours: Mapping[str, Colour], kind: Kind, limit: float, points: list[Point]
) -> Chart:
    rows = sorted({math.ceil(math.log2(max(p.m, 1))) for p in points})
    used = sorted({column(1 - p.density) for p in points})
    row_names = [f"≤ {2**row:,}" for row in rows]
    names = [column_names()[place] for place in used]
    cells, numbers = [], []
    for i, row in enumerate(rows):
        for j, place in enumerate(used):
            mine = [p for p in points if math.ceil(math.log2(max(p.m, 1))) == row]
            mine = [p for p in mine if column(1 - p.density) == place]
            if mine:
                entry, wins = _winner(material, mine)
                text = entry.name if len(mine) == 1 else f"{entry.name}\n{wins} of {len(mine)}"
                cells.append(HeatCell(j, i, colours[entry.variant.family_name], text, f"#{entry.anchor}"))
                link = Link(entry.name, entry.anchor)
                numbers.append(
                    (row_names[i], names[j], link, entry.variant.family_name, f"{wins} of {len(mine)}")
                )
    present = sorted({family for _, _, _, family, _ in numbers})

    def draw(panel: Panel) -> None:
        panel.cells(cells, names, row_names)
        panel.labels("zeros in the matrix, %", "m, rows")
        for family in present:
            panel.swatch(colours[family], family)

    values = sorted({p.n for p in points})
    sizes = words.listed(values, most=6)
    name = str(kind)
    suffix = "more" if math.isinf(limit) else str(limit)
    return Chart(
        name=f"best-{kind.slug}-n-{suffix}",
        title=f"{name}: n = {sizes}",
        caption=f"{material.inputs.device_name}, {words.count(len(points), 'workload')}.",
        alt=f"Heat map of the winning variant of {name} over m and sparsity, n = {sizes}.",
        draw=draw,
        height=1.3 + 0.42 * len(rows),
        numbers=Table("The cells", ("m", "zeros, %", "variant", "family", "won"), tuple(numbers), 4),
    )


def _winner(material: Material, points: Sequence[Point]) -> tuple[Entry, int]:
    counted = Counter(p.variant for p in points if p.variant is not None)
    variant, wins = counted.most_common(1)[0]
    return material.catalogue.entry(variant), wins
