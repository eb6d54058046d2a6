"""The documents' tables are those that the raw results make; and what makes them, on synthetic results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_samples import results, row, sweep

from sparsegen.bench import result_file
from sparsegen.errors import SparsegenError

ROOT = Path(__file__).parents[1]
GPU = ROOT / "benchmarks" / "results" / "nvidia-h100-80gb-hbm3-sm90"


@pytest.mark.skipif(not list(GPU.glob("bench_*.json")), reason="no bench_*.json among the committed results")
def test_the_tables_are_up_to_date() -> None:
    command = [sys.executable, "-m", "benchmarks.make_tables", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`benchmarks.make_tables` with a folder of results of its own, ``tables.RESULTS``."""
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import make_tables

    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    return make_tables


def test_summary_and_cases(tables: Any) -> None:
    result_file.write(results(row("first")), tables.RESULTS / "bench_a.json")
    result_file.write(results(row("second", suite="other")), tables.RESULTS / "bench_b.json")
    filled = tables.fill(
        "<!-- performance:begin -->\nold\n<!-- performance:end -->\n<!-- cases:begin --><!-- cases:end -->"
    )
    assert "\nold\n" not in filled
    assert "| made-up, fp32 | 1 | 2.00 × | 1.60 × | – | 1.20 × | 1 of 1 |" in filled
    assert "### other, fp32, row-major" in filled
    assert "| second | 5.00 | 6.00 | 10.00 | 8.00 | cusparse-csr | 2.00 | 1.60 |" in filled
    assert "Made-up GPU, driver 580.1, 2026-01-02" in filled
    assert tables.fill(filled) == filled


def test_sputnik_stands_beside_the_rows_that_it_was_timed_on(tables: Any) -> None:
    [known] = [
        us["sputnik"] for key, us in tables.peers().items() if key == ("rnn", "4096x1024x32 .70", "float32")
    ]
    ours = row("4096x1024x32 .70", suite="rnn")
    result_file.write(results(ours, row("made up", suite="rnn")), tables.RESULTS / "bench_a.json")
    assert f"| {known / 5.0:.2f} × | 1.20 × | 2 of 2 |" in tables.performance()


def test_a_second_run_beside_the_first(tables: Any) -> None:
    result_file.write(sweep(), tables.RESULTS / "bench_a.json")
    result_file.write(sweep(), tables.RESULTS / "repeat_a.json")
    assert "| made-up, fp32 | 1.000 | 1.000 |" in tables.reproduction()


def test_rows_that_were_not_timed_have_a_dash(tables: Any) -> None:
    result_file.write(results(replace(row("bare"), cells=())), tables.RESULTS / "bench_a.json")
    assert "| made-up, fp32 | 1 | – | – | – | – | – |" in tables.performance()
    assert "| bare | – | – | – | – | – |" in tables.cases()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- performance:begin --><!-- performance:end -->", "has no bench_"),
        ("<!-- layouts:begin --><!-- layouts:end -->", "no table is called layouts"),
        ("<!-- cases:begin -->", "has no <!-- cases:end -->"),
    ],
)
def test_what_cannot_be_made_is_told(tables: Any, text: str, complaint: str) -> None:
    with pytest.raises(SparsegenError, match=complaint):
        tables.fill(text)
