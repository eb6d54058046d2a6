"""Means of a run: which rows count, and that a ratio says the right thing is faster."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from bench_samples import row
from rich.console import Console

from sparsegen.bench.results.results import TUNED, Rates
from sparsegen.bench.results.summary import summarize
from sparsegen.bench.run.rows import floor_of
from sparsegen.cli.parts.bench_text import row_table, summary_table
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DsdProblem, DType, FactorType


def test_ratios_of_one_row() -> None:
    (found,) = summarize([row(ours=5.0, untuned=6.0, dense=10.0, sparse=8.0)])
    assert found.to_dense.value == pytest.approx(0.5)
    assert found.to_best_sparse.value == pytest.approx(0.625)
    assert found.untuned_to_tuned.value == pytest.approx(1.2)
    assert found.best_sparse_to_dense.value == pytest.approx(0.8)
    assert found.faster_than_dense.value == 1.0


def test_tf32_stands_beside_float32_alone() -> None:
    one, other = summarize([row(ours=5.0, dense=10.0), row(dtype=DType.FLOAT16)])
    assert one.to_dense.value == pytest.approx(0.5) and one.to_dense_tf32.value == pytest.approx(2.0)
    assert other.to_dense_tf32.count == 0


def test_means_are_geometric() -> None:
    (found,) = summarize([row("a", ours=5.0, dense=10.0), row("b", ours=20.0, dense=10.0)])
    assert found.to_dense.value == pytest.approx(1.0)
    assert found.faster_than_dense.value == 0.5


def test_rows_without_a_time_do_not_count() -> None:
    without = replace(row("b"), cells=tuple(c for c in row("b").cells if c.baseline != TUNED))
    (found,) = summarize([row("a"), without])
    assert found.rows == 2 and found.to_dense.count == 1
    assert found.best_sparse_to_dense.count == 2


def test_nothing_timed_is_no_number() -> None:
    (found,) = summarize([replace(row(), cells=())])
    assert math.isnan(found.to_dense.value) and found.to_dense.count == 0


def test_suites_and_types_are_apart() -> None:
    found = summarize([row(), row(dtype=DType.FLOAT16), row(suite="other"), row("b")])
    assert [(s.suite, str(s.dtype), s.rows) for s in found] == [
        ("made-up", "float32", 2),
        ("made-up", "float16", 1),
        ("other", "float32", 1),
    ]


def test_factors_of_8_bits_are_apart_and_have_a_floor_of_their_own() -> None:
    half = DsdProblem(512, 512, 512, DType.FLOAT16)
    of_8_bits = replace(half, factor_type=FactorType.E4M3), replace(half, factor_type=FactorType.E5M2_E4M3)
    rates = Rates(1e12, {Arithmetic.FLOAT16: 5e14}, 2.0)
    floors = [floor_of(problem, 0, rates).compute_us for problem in (half, *of_8_bits)]
    assert floors[0] and floors[1:] == [floors[0] / 2] * 2
    assert floor_of(half, 0, replace(rates, flop_per_s={Arithmetic.FLOAT32: 5e13})).compute_us is None
    rows = [replace(row("a"), problem=problem) for problem in (half, *of_8_bits)]
    console = Console(file=io.StringIO(), width=200)
    console.print(summary_table(rows).fitting(console.width))
    lines = console.file.getvalue().splitlines()
    found = [line.removeprefix("made-up").split("  ")[1].strip() for line in lines[1:]]
    assert found == ["float16", "e4m3 → float16", "e5m2-e4m3 → float16"]


def test_tables_of_rows_and_means_show_every_number_on_80_columns() -> None:
    rows = [replace(row("a layer with a long name n=64 epilogue=bias_relu batch=4"), suite="matrix")]
    for table in (row_table(rows), summary_table(rows)):
        console = Console(file=io.StringIO(), width=80)
        console.print(table.fitting(console.width))
        shown = console.file.getvalue()
        assert "…" not in shown and shown.count("\n") > 2
        (cells,) = table.rows
        assert all(cell in shown for cell in cells)
