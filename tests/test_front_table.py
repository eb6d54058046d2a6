"""Tables and picture of where ours wins and loses, of made-up times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_samples import cell, results, row
from click.testing import CliRunner

from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import IN_GRAPH, TUNED, UNTUNED, Kind
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType

ROOT = Path(__file__).parents[1]
HALF = DType.FLOAT16


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import front_table

    return front_table


def llm(case: str, ours: float) -> Any:
    return row(case, suite="llm", dtype=HALF, ours=ours, dense=10.0, sparse=8.0)


def test_the_fastest_of_all_others_counts(front: Any, tmp_path: Path) -> None:
    result_file.write(
        replace(results(), rows=(llm("first", 4.0), llm("second", 16.0))), tmp_path / "bench_a.json.xz"
    )
    line = "| pruned LLaMA weights, 8 to 32 tokens, fp16 | 1.00 × | 0.50 to 2.00 | 1 of 2 | cuSPARSE 2 |"
    made = front.lists(tmp_path, {})
    assert line in made and "L2 cold" in made and "Made-up GPU" in made
    anchored = {("llm", "first", "float16"): {"macko": 2.0, "voltrix": 1.0}}
    line = "| pruned LLaMA weights, 8 to 32 tokens, fp16 | 0.50 × | 0.50 to 0.50 | 0 of 2 | MACKO 1, cuSPARSE 1 |"
    assert line in front.lists(tmp_path, anchored)


def test_losses_come_last(front: Any, tmp_path: Path) -> None:
    rows = (llm("first", 20.0), row("layer", suite="dlmc", ours=2.0, dense=4.0, sparse=8.0))
    result_file.write(replace(results(), rows=rows), tmp_path / "bench_a.json.xz")
    lines = front.lists(tmp_path, {}).splitlines()[2:]
    assert lines[0].startswith("| pruned layers (DLMC), fp32 | 2.00 ×")
    assert lines[2].startswith("| pruned LLaMA weights, 8 to 32 tokens, fp16 | 0.40 ×")


def test_drawn_rows_of_an_operator_are_a_line(front: Any, tmp_path: Path) -> None:
    """Calls without a search stand beside the tuned winner, of the rows that have them."""
    first = row("first", suite="drawn-spmm-7", ours=4.0, dense=12.0, sparse=16.0)
    called = replace(first, cells=(*first.cells, cell(IN_GRAPH, Kind.OURS, 6.0)))
    second = row("second", suite="drawn-spmm-7", dtype=HALF, ours=4.0, dense=5.0, sparse=3.0)
    result_file.write(replace(results(), rows=(called, second)), tmp_path / "drawn_7.json.xz")
    line = "columns, `spmm` | 1.50 × | 0.75 to 3.00 | 1 of 2 | 2.00 × | cuBLAS 1, cuSPARSE 1 |"
    made = front.drawn([tmp_path, tmp_path / "nothing"])
    assert line in made and "Made-up GPU" in made


def test_tf32_counts_where_the_line_says_so(front: Any, tmp_path: Path) -> None:
    tf32 = replace(cell("cublas-tf32", Kind.DENSE, 1.0), arithmetic=Arithmetic.TF32)
    one = row("layer", suite="dlmc", ours=2.0, dense=4.0, sparse=8.0)
    kept = tuple(c for c in one.cells if c.baseline != "cublas-tf32")
    result_file.write(
        replace(results(), rows=(replace(one, cells=(*kept, tf32)),)), tmp_path / "bench_a.json.xz"
    )
    made = front.lists(tmp_path, {})
    assert "| pruned layers (DLMC), fp32 | 2.00 ×" in made
    assert "| pruned layers (DLMC), dense in TF32 counts too, fp32 | 0.50 ×" in made


def test_rows_without_an_alternative_are_left_out(front: Any, tmp_path: Path) -> None:
    alone = replace(
        llm("first", 4.0), cells=(cell(TUNED, Kind.OURS, 4.0, HALF), cell(UNTUNED, Kind.OURS, 5.0, HALF))
    )
    result_file.write(replace(results(), rows=(alone,)), tmp_path / "bench_a.json.xz")
    assert "LLaMA" not in front.lists(tmp_path, {})


def test_the_picture(front: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import speed_plot

    monkeypatch.setattr(speed_plot, "RESULTS", tmp_path)
    cases = [f"net/way/0.{tenth}/{i}" for tenth in (5, 9) for i in range(3)]
    rows = tuple(row(case, suite="dlmc", ours=5.0, dense=10.0, sparse=20.0) for case in cases)
    result_file.write(
        replace(results(), rows=(*rows, row("net/way/0.98/0", suite="dlmc"))), tmp_path / "bench_a.json.xz"
    )
    _, _, sparsity_of = speed_plot.PANELS["pruned layers (DLMC), float32"]
    found = speed_plot.points(rows, sparsity_of, {})
    assert found == [
        (50.0, pytest.approx(2.0), pytest.approx(0.5)),
        (90.0, pytest.approx(2.0), pytest.approx(0.5)),
    ]
    done = CliRunner().invoke(speed_plot.main, [str(tmp_path / "plot.svg")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "plot.svg").read_text().count("<path") > 10
