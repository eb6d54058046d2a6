"""The numbers behind the charts: crossovers, regret, curves over n, gains over fixed settings, searches."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bench_samples import results, row, sweep
from tuning_samples import failed, timed, workload

from sparsegen.kernels import families_of, family
from sparsegen.operators import SddmmProblem
from sparsegen.report import build, canvas, words
from sparsegen.report.content import Section
from sparsegen.report.points import from_records, from_results
from sparsegen.report.sections.best import column, column_names, family_colours
from sparsegen.report.sections.fixed import gains
from sparsegen.report.sections.regret import quantile
from sparsegen.report.sections.scaling import matrices
from sparsegen.report.sections.speedup import crossover, shapes
from sparsegen.report.sections.study import best_so_far, studies
from sparsegen.report.tables import Table
from sparsegen.tuning_db.records import Measurement, Outcome


def test_the_crossover_is_interpolated_in_logarithms() -> None:
    found = crossover([(0.4, 0.5), (0.1, 2.0)])
    assert found.sparsity == pytest.approx(1 - 0.2)  # half way from 0.4 to 0.1, as ratios


def test_curves_that_do_not_cross() -> None:
    assert crossover([(0.5, 1.2), (0.1, 3.0)]).always_faster
    never = crossover([(0.5, 0.2), (0.1, 0.9)])
    assert never.sparsity is None and not never.always_faster


def test_a_dip_below_dense_moves_the_crossover() -> None:
    found = crossover([(0.5, 1.5), (0.2, 0.8), (0.1, 1.25)])
    assert found.sparsity is not None and 0.8 < found.sparsity < 0.9


def test_shapes_join_what_differs_in_sparsity_alone() -> None:
    curves = shapes(from_results([sweep()]))
    assert len(curves) == 2 * 2 * 2  # types, m, n
    assert all([d for d, _ in curve] == sorted((d for d, _ in curve), reverse=True) for curve in curves)


def test_equal_sparsities_count_once() -> None:
    rows = [row("a", density=0.1, ours=5.0), row("b", density=0.1, ours=20.0), row("c", density=0.5)]
    (curve,) = shapes(from_results([results(*rows)]))
    assert [round(d, 2) for d, _ in curve] == [0.5, 0.1]
    assert curve[1][1] == pytest.approx(1.0)  # the geometric mean of 2 and 0.5


def test_curves_over_n_need_two_values() -> None:
    found = matrices(from_results([sweep()]))
    assert {(kind[1], curve[0].m) for kind, curve in found} == {
        (dtype, m) for dtype in ("float32", "float16") for m in (512, 2048)
    }
    assert all([p.n for p in curve] == [32, 256] for _, curve in found)
    assert matrices(from_results([results()])) == []


@pytest.mark.parametrize(("share", "expected"), [(0.25, 1.0), (0.5, 2.0), (0.9, 4.0), (1.0, 4.0)])
def test_quantiles(share: float, expected: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_columns_cover_every_sparsity() -> None:
    assert column(0.0) == 0 and column(1.0) == len(column_names()) - 1
    assert column_names()[column(0.9)] == "85–92.5"


def uspmm(us: float, vsize: int, nwarp: int, tag: str = "a") -> Measurement:
    measurement = timed(us, workload(tag=tag))
    config = family("uspmm").config(vsize=vsize, nwarp=nwarp)
    return replace(measurement, variant=replace(measurement.variant, config=config))


def test_gains_over_fixed_settings() -> None:
    measured = [
        uspmm(9.0, 8, 1),
        uspmm(6.0, 4, 8),  # no setting of the paper
        timed(3.0, workload(tag="a")),
        timed(5.0, workload(tag="b")),  # the setting was not timed here
        uspmm(4.0, 8, 1, tag="c"),
        uspmm(4.5, 8, 2, tag="c"),
    ]
    found = gains(measured, family("uspmm"))
    assert [(g.fixed_us, g.winner_us, g.factor) for g in found] == [(9.0, 3.0, 3.0), (4.0, 4.0, 1.0)]


def test_points_from_the_database_take_the_winner() -> None:
    measured = [timed(5.0, tile_n=32), timed(3.0, tile_n=64), failed(Outcome.WRONG, "wrong", tile_n=128)]
    (point,) = from_records(measured, [])
    assert point.ours == 3.0 and point.variant is not None
    assert point.variant.to_dict()["tile_n"] == 64
    assert point.dense is None and point.over_dense is None


def trials(count: int) -> list[Measurement]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [100.0 - (i * 37) % 50 for i in range(count)]
    return [replace(timed(us), measured_at=start + timedelta(seconds=i)) for i, us in enumerate(times)]


def test_every_family_of_an_operator_has_a_colour_of_its_own() -> None:
    [point] = from_results([results(row("a"))])
    assert point.variant is not None
    for problem in (point.problem, SddmmProblem(512, 512, 64)):
        operator = problem.operator
        named = [replace(point, problem=problem, variant=family.config()) for family in families_of(operator)]
        colours = family_colours([*named, point], operator)
        assert set(colours) == {family.name for family in families_of(operator)}
        assert len(set(colours.values())) == len(colours)


def test_the_best_so_far_never_rises() -> None:
    steps = best_so_far(trials(30))
    assert steps[0][0] == 1 and steps[-1][0] == 30
    assert all(a[1] >= b[1] for a, b in pairwise(steps))


def test_studies_are_large_and_without_finalists() -> None:
    few = [replace(m, workload=workload(tag="few")) for m in trials(19)]
    final = [replace(m, final=True) for m in trials(5)]
    ((_, found),) = studies([*trials(25), *few, *final])
    assert len(found) == 25


@pytest.mark.parametrize(
    ("value", "text"),
    [(16384.0, "16384"), (65536.0, "65536"), (2.0**30, "1073741824"), (0.5, "0.5"), (128.0, "128")],
)
def test_axes_say_the_number_that_is_there(value: float, text: str) -> None:
    assert words.tick(value) == text


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 40.0), (512.0, 16384.0), (0.006, 0.3), (1e-3, 1e5), (100.0, 300.0)]
)
def test_every_tick_of_an_axis_reads_as_its_place(low: float, high: float) -> None:
    found = []

    class Axis:
        def set_major_locator(self, locator: Any) -> None:
            found.extend(v for v in locator.tick_values(low, high) if low <= v <= high)

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    canvas._few_ticks(Axis(), (low, high), words.tick)
    assert found
    for value in found:
        assert float(words.tick(value)) == pytest.approx(value, rel=1e-9)
        assert len(words.tick(value)) <= 10


def test_a_section_that_shows_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Section(
        "a", "Shown", tables=(Table("numbers", ("n",), (("1",),)),), missing=("Some are not there.",)
    )
    empty = Section("b", "Empty", lead=("About it.",), missing=("Nothing was measured.",))
    monkeypatch.setattr(build, "ALL", [lambda material: shown, lambda material: empty])
    monkeypatch.setattr(build, "_facts", lambda inputs: [("device", "a GPU")])
    inputs = SimpleNamespace(device_name="a GPU", device_key="gpu", results=[], database=None)
    material = SimpleNamespace(inputs=inputs, points=[], origin="", catalogue=SimpleNamespace(sources=()))
    report = build.compose(cast(Any, material))
    assert [one.title for one in report.shown] == ["Shown"]
    assert report.facts[1:] == (("not shown", "Empty. Nothing was measured."),)
