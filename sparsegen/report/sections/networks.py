"""Sparse networks: edges per second over the width of a layer, and the device's floors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsegen.bench.results.results import TUNED, UNTUNED, BenchDevice, Kind, Rates, Row
from sparsegen.kernels.rates import L2_BYTES_PER_CYCLE, architecture
from sparsegen.operators import SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.report import words
from sparsegen.report.canvas import Chart, Panel
from sparsegen.report.colours import MARKERS, SERIES, Colour
from sparsegen.report.content import Section
from sparsegen.report.material import Material
from sparsegen.report.tables import Table

BANK_BYTES = 128  # bytes that a multiprocessor's shared memory delivers in a cycle
LEAD = (
    "10¹² edges per second (TE/s): every input counts with the weights of all layers, also where it dies on the way "
    "and is computed no further; computed TE/s count what is left to compute, by a sample of the inputs. The others "
    "compute all layers as products of their own, with biases and activations between them.",
    "Floors are times for what is left to compute: of the products on tensor cores, at the rate of a large dense "
    "product; of all operands once through memory; of every layer's neurons once to and from memory, or L2, which "
    "bound kernels that go layer by layer; and of one read from shared memory for each edge and input, which bounds "
    "kernels without tensor cores. Preparation is packing and upload.",
)
NAMES = {TUNED: "ours", UNTUNED: "ours, untuned"}


@dataclass(frozen=True, slots=True)
class Measured:
    """A network's row.

    Attributes:
        rates, device: rates and device of its file.
    """

    row: Row
    problem: SparseNetworkProblem
    rates: Rates | None
    device: BenchDevice

    @property
    def edges(self) -> int:
        return self.problem.edges(self.row.nnz)

    def rate(self, us: float | None) -> float | None:
        """TE/s; None without a time."""
        return self.edges * self.problem.n / us / 1e6 if us else None

    def computed_rate(self, us: float | None) -> float | None:
        """TE/s of the edges whose inputs live; None without a time, or where the file does not say how many do."""
        rate = self.rate(us)
        known = self.row.floor.computed < 1.0 or self.problem.activation is not Activation.DYING_RELU
        return rate * self.row.floor.computed if known and rate is not None else None

    def floors(self) -> tuple[tuple[str, float | None], ...]:
        """Names, and microseconds; None where a rate was not measured."""
        problem, itemsize = self.problem, self.problem.dtype.itemsize
        flop = self.rates and self.rates.flop_per_s_of(problem.multiplied)
        cycles = self.device.multiprocessors * architecture(self.device.compute_capability).clock_mhz
        inputs = self.row.floor.computed * problem.n
        neurons = 2 * problem.layers * problem.neurons * inputs * itemsize
        return (
            ("tensor cores", 2e6 * self.edges * inputs / flop if flop else None),
            ("operands through memory", self.row.floor.memory_us),
            ("layers through memory", 1e6 * neurons / self.rates.copy_bytes_per_s if self.rates else None),
            ("layers through L2", neurons / (L2_BYTES_PER_CYCLE * cycles)),
            ("shared memory for each edge", self.edges * inputs * itemsize / (BANK_BYTES * cycles)),
        )


def section(material: Material) -> Section:
    measured = networks(material)
    charts, tables = [], []
    for dies in (False, True):
        mine = [m for m in measured if (m.problem.activation is Activation.DYING_RELU) == dies]
        if mine:
            charts.append(_chart(material, mine, dies))
            tables.append(_floors(mine, dies))
    missing = () if measured else ("No sparse network was measured.",)
    return Section("networks", "Sparse networks", LEAD, tuple(tables), tuple(charts), missing)


def networks(material: Material) -> list[Measured]:
    """Rows of networks, by width, then by layers and inputs."""
    found = [
        Measured(row, row.problem, part.rates, part.device)
        for _, part in material.inputs.results
        for row in part.rows
        if isinstance(row.problem, SparseNetworkProblem)
    ]
    return sorted(found, key=lambda m: (m.problem.neurons, m.problem.layers, m.problem.n))


def _title(dies: bool) -> str:
    return "inputs die" if dies else "every input alive"


def _baselines(measured: Sequence[Measured]) -> list[str]:
    """Names with a time, ours first."""
    cells = [cell for m in measured for cell in m.row.cells if cell.timing is not None]
    return list(dict.fromkeys(cell.baseline for cell in sorted(cells, key=lambda c: c.kind is not Kind.OURS)))


def _size(m: Measured) -> str:
    return f"{m.problem.neurons:,} neurons × {m.problem.layers:,} layers, {m.problem.n:,} inputs"


def _chart(material: Material, measured: list[Measured], dies: bool) -> Chart:
    names = _baselines(measured)

    def draw(panel: Panel) -> None:
        for place, name in enumerate(names):
            known = [(m, rate) for m in measured if (rate := m.rate(m.row.us(name))) is not None]
            panel.points(
                [float(m.problem.neurons) for m, _ in known],
                [rate for _, rate in known],
                [f"{NAMES.get(name, name)}, {_size(m)}: {words.figure(rate)} TE/s" for m, rate in known],
                colour=SERIES[place % len(SERIES)],
                marker=MARKERS[place % len(MARKERS)],
                label=NAMES.get(name, name),
            )
        if not dies:
            tensor = [
                (float(m.problem.neurons), rate)
                for m in measured
                if (rate := m.rate(m.floors()[0][1])) is not None
            ]
            if tensor:
                xs, ys = zip(*tensor, strict=True)
                panel.line(list(xs), list(ys), colour=Colour.INK, width=1.6, label="tensor cores")
        panel.labels("neurons of a layer", "TE/s")
        panel.log_x(lambda value: f"{value:,.10g}")
        panel.log_y(lambda value: f"{value:,.10g}")

    rows = tuple((_size(m), *(words.figure(m.rate(m.row.us(name))) for name in names)) for m in measured)
    return Chart(
        name=f"networks-{'dying' if dies else 'alive'}",
        title=f"Edges per second, {_title(dies)}",
        caption=f"{material.inputs.device_name}.",
        alt=f"Plot: edges per second against neurons of a layer, {_title(dies)}.",
        draw=draw,
        numbers=Table("The numbers, in TE/s", ("network", *(NAMES.get(n, n) for n in names)), rows),
    )


def _floors(measured: list[Measured], dies: bool) -> Table:
    """Our time, its rates and preparation beside the floors."""
    heads = (
        "network",
        "ours",
        "TE/s",
        "computed TE/s",
        "preparation",
        *(name for name, _ in measured[0].floors()),
    )
    rows = []
    for m in measured:
        name = TUNED if m.row.us(TUNED) is not None else UNTUNED
        cell, us = m.row.cell(name), m.row.us(name)
        prepared = cell.preparation_ms if cell else None
        floors = tuple(words.microseconds(us) for _, us in m.floors())
        spent = words.MISSING if prepared is None else f"{words.figure(prepared)} ms"
        rates = (words.figure(m.rate(us)), words.figure(m.computed_rate(us)))
        rows.append((_size(m), words.microseconds(us), *rates, spent, *floors))
    return Table(f"Times and floors, {_title(dies)}", heads, tuple(rows))
