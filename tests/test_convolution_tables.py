"""Tables and picture of the suite of convolutions, of made-up times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_samples import cell, results, row
from click.testing import CliRunner

from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import UNTUNED, Kind, Row
from sparsegen.bench.suites import load_suite
from sparsegen.operators import DType

ROOT = Path(__file__).parents[1]


def made_up(us: float, dense: float) -> list[Row]:
    """A row for each of the suite's, whose time falls with the mask."""
    found = []
    for case in load_suite("convolution").cases:
        for dtype in case.dtypes:
            problem = case.in_dtype(dtype)
            cells = [
                cell(UNTUNED, Kind.OURS, us * problem.density.share, dtype),  # type: ignore[attr-defined]
                cell("torch-conv2d", Kind.DENSE, dense, dtype),
            ]
            if problem.density.share == 0.1 and dtype is DType.FLOAT16:  # type: ignore[attr-defined]
                cells.append(cell("torch-gather-conv", Kind.SPARSE, 5.0 * us * 0.1, dtype))
            plain = row(case.name, suite="convolution", dtype=dtype)
            found.append(replace(plain, problem=problem, cells=tuple(cells)))
    return found


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import make_tables

    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    return make_tables


def test_nothing_was_measured(tables: Any) -> None:
    for name in ("times", "blobs", "others", "peers"):
        assert "Not measured yet" in tables.TABLES[f"convolution-{name}"]()


def test_rows(tables: Any, tmp_path: Path) -> None:
    result_file.write(
        replace(results(), rows=tuple(made_up(100.0, 120.0))), tmp_path / "bench_convolution.json.xz"
    )
    assert (
        "| 64, 1, 128² | 120.0 | 100.0 | 50.0 | 30.0 | 10.0 | 5.0 | 1.20 / 2.40 / 4.00 / 12.00 / 24.00 |"
        in tables.TABLES["convolution-times"]()
    )
    assert (
        "| 50.0 | 30.0 | 10.0 | 5.0 | 2.40 / 4.00 / 12.00 / 24.00 |" in tables.TABLES["convolution-blobs"]()
    )
    others = tables.TABLES["convolution-others"]()
    assert "`256x256x128x128 rest=kept batch=8`, bf16" in others and "gradient by x" in others
    assert "| 256, 8, 512², 90 %, random | 10.0 | 5.0 × | – | – |" in tables.TABLES["convolution-peers"]()


def test_the_picture(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks import sparsity_plot

    monkeypatch.setattr(sparsity_plot, "RESULTS", tmp_path)
    result_file.write(
        replace(results(), rows=tuple(made_up(100.0, 120.0))), tmp_path / "bench_convolution.json.xz"
    )
    done = CliRunner().invoke(sparsity_plot.main, [str(tmp_path / "plot.svg")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "plot.svg").read_text().count("<path") > 10
