"""The section on sparse networks: rates, floors, and what stands where nothing was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_samples import cell, results, row

from sparsegen.bench.results.results import TUNED, Kind, Row
from sparsegen.kernels import family
from sparsegen.operators import Activation, DType, Readout, SparseNetworkProblem
from sparsegen.report.inputs import Inputs
from sparsegen.report.material import Material
from sparsegen.report.sections.networks import networks, section

HALF = DType.FLOAT16
VARIANT = family("staged_network").config(first_check=0, checks=1)


def network(neurons: int, us: float, activation: Activation = Activation.RELU) -> Row:
    problem = SparseNetworkProblem(12 * neurons, neurons + 3, 2000, HALF, activation, Readout.TOTALS)
    cells = (
        replace(cell(TUNED, Kind.OURS, us, HALF), variant=VARIANT),
        cell("cusparse-layers", Kind.SPARSE, 20 * us, HALF),
        cell("cublas-layers", Kind.DENSE, 10 * us, HALF),
    )
    return replace(
        row(dtype=HALF), case=f"{neurons} {activation}", problem=problem, nnz=12 * neurons * 35, cells=cells
    )


def material(*rows: Row) -> Material:
    part = results(*rows)
    return Material.of(Inputs(part.device.key, part.device.name, (("made.json", part),), "", (), (), ()))


def test_edges_per_second_and_floors() -> None:
    (wide, narrow) = reversed(networks(material(network(4096, 500.0), network(1024, 50.0))))
    assert narrow.problem.neurons == 1024 and wide.problem.neurons == 4096
    assert narrow.edges == 12 * 1024 * 32
    assert narrow.rate(50.0) == pytest.approx(12 * 1024 * 32 * 2000 / 50e-6 / 1e12)
    assert narrow.rate(None) is None
    floors = dict(narrow.floors())
    assert floors["tensor cores"] == pytest.approx(2 * narrow.edges * 2000 / 7e14 * 1e6)
    assert floors["layers through memory"] == pytest.approx(2 * 12 * 1024 * 2000 * 2 / 2.5e12 * 1e6)
    assert floors["layers through L2"] < floors["layers through memory"]
    assert floors["shared memory for each edge"] == pytest.approx(
        narrow.edges * 2000 * 2 / (128 * 132 * 1980)
    )


def test_those_that_die_have_a_chart_of_their_own() -> None:
    dying = network(1024, 10.0, Activation.DYING_RELU)
    found = section(material(network(1024, 50.0), network(4096, 500.0), dying))
    assert [chart.name for chart in found.charts] == ["networks-alive", "networks-dying"]
    alive = found.charts[0]
    assert alive.numbers is not None
    assert alive.numbers.head == ("network", "ours", "cusparse-layers", "cublas-layers")
    assert len(alive.numbers.rows) == 2 and alive.numbers.rows[0][1] == "15.7"
    assert "<svg" in alive.svg()
    assert [len(table.rows) for table in found.tables] == [2, 1]
    assert found.tables[0].rows[0][1:5] == ("50.0 µs", "15.7", "15.7", "1.50 ms")
    assert found.tables[1].rows[0][1:4] == ("10.0 µs", "78.6", "–"), "the file does not say how many live"


def test_inputs_that_died_are_not_computed() -> None:
    whole = network(1024, 10.0, Activation.DYING_RELU)
    (m,) = networks(material(replace(whole, floor=replace(whole.floor, computed=0.1))))
    (all_of_them,) = networks(material(whole))
    assert m.computed_rate(10.0) == pytest.approx(0.1 * m.rate(10.0))
    assert all_of_them.computed_rate(10.0) is None
    mine, others = dict(m.floors()), dict(all_of_them.floors())
    assert mine.pop("operands through memory") == others.pop("operands through memory")
    assert mine == pytest.approx({name: 0.1 * us for name, us in others.items() if us is not None})


def test_without_networks_it_says_so() -> None:
    found = section(material(row()))
    assert found.missing == ("No sparse network was measured.",) and not found.charts
