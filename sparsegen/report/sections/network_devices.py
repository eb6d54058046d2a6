"""Sparse networks on several GPUs of a host: edges per second over their number, and streamed layers."""

from __future__ import annotations

from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import MARKERS, SERIES, Colour
from sparsegen.report.content import Section
from sparsegen.report.material import Material
from sparsegen.report.network_devices import DevicesRow
from sparsegen.report.tables import Table

LEAD = (
    "By wall clock, from inputs on the host to totals on the host, in 10¹² edges per second (TE/s), where every input "
    "counts with the weights of all layers. Efficiency is the time of one GPU over that of several and their number. "
    "Streamed layers are copied from the host while others are computed.",
)


def section(material: Material) -> Section:
    rows = [row for study in material.inputs.network_devices for row in study.rows]
    dealt = [row for row in rows if not row.weights]
    streamed = [row for row in rows if row.weights]
    missing = () if rows else ("No network was measured on several GPUs (--network-devices).",)
    return Section(
        "network-devices",
        "Sparse networks on several GPUs",
        LEAD if rows else (),
        tables=(_streamed(streamed),) if streamed else (),
        charts=(_chart(material, dealt),) if dealt else (),
        missing=missing,
    )


def _network(row: DevicesRow) -> str:
    return f"{row.case}, {row.neurons:,} neurons × {row.layers:,} layers, {row.inputs:,} inputs"


def _share(value: float | None) -> str:
    return words.MISSING if value is None else f"{value:.1%}"


def _chart(material: Material, rows: list[DevicesRow]) -> Chart:
    networks = list(dict.fromkeys(map(_network, rows)))

    def draw(panel: Panel) -> None:
        for place, name in enumerate(networks):
            mine = sorted((r for r in rows if _network(r) == name), key=lambda r: r.devices)
            colour = SERIES[place % len(SERIES)]
            panel.points(
                [float(r.devices) for r in mine],
                [r.tera_edges for r in mine],
                [f"{name}, {words.count(r.devices, 'GPU')}: {words.figure(r.tera_edges)} TE/s" for r in mine],
                colour=colour,
                marker=MARKERS[place % len(MARKERS)],
                label=name,
            )
            first, last = mine[0], mine[-1]
            if first.devices < last.devices:
                ends = [float(first.devices), float(last.devices)]
                ideal = [count * first.tera_edges / first.devices for count in ends]
                label = "in proportion" if place == 0 else None
                panel.line(ends, ideal, colour=Colour.INK, width=0.8, label=label)
        panel.labels("GPUs", "TE/s")
        panel.whole_numbers_x()

    table = tuple(
        (_network(r), str(r.devices), f"{r.ms:,.1f} ms", words.figure(r.tera_edges), _share(r.efficiency))
        for r in sorted(rows, key=lambda r: (networks.index(_network(r)), r.devices))
    )
    return Chart(
        name="networks-over-devices",
        title="Edges per second over GPUs",
        caption=f"{material.inputs.device_name}.",
        alt="Plot: edges per second of networks against the number of GPUs.",
        draw=draw,
        numbers=Table("The numbers", ("network", "GPUs", "time", "TE/s", "efficiency"), table),
    )


def _streamed(rows: list[DevicesRow]) -> Table:
    return Table(
        "Layers that are streamed, on one GPU",
        ("network", "weights", "time", "TE/s", "time over resident"),
        tuple(
            (_network(r), r.weights, f"{r.ms:,.1f} ms", words.figure(r.tera_edges), _share(r.over_resident))
            for r in rows
        ),
        text_columns=2,
    )
