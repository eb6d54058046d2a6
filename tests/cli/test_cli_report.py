"""``sparsegen report``: what it writes, and its errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench_samples import results, sweep
from command_line import Command
from patience import LONG

pytest.importorskip("matplotlib")

from sparsegen.bench.results import result_file


def test_page_and_images(run: Command, tmp_path: Path) -> None:
    result_file.write(results(), tmp_path / "bench.json")
    page, images = tmp_path / "report.html", tmp_path / "png"
    found = run.json("report", "--bench", tmp_path / "bench.json", "-o", page, "--png", images)
    assert page.stat().st_size == found["bytes"]
    charts = [chart for section in found["sections"] for chart in section["charts"]]
    assert charts and [Path(image).stem for image in found["images"]] == charts
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images.iterdir())


def test_a_summary_for_people(run: Command, tmp_path: Path) -> None:
    result_file.write(results(), tmp_path / "bench.json")
    done = run("report", "--bench", tmp_path / "bench.json", "-o", tmp_path / "report.html")
    assert "report.html: " in done.output and "charts" in done.output
    assert "Time against n: No matrix was measured with two values of n." in done.output


def test_half_a_result_file(run: Command, tmp_path: Path) -> None:
    text = result_file.dump(sweep())
    (tmp_path / "bench.json").write_text(text[: len(text) // 2])
    error = run.json("report", "--bench", tmp_path / "bench.json", exit_code=3)["error"]
    assert error["type"] == "ResultsError" and "not valid JSON" in error["message"]


def test_no_database_and_no_file(run: Command, tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(b"precious")
    told = run("report", "-o", tmp_path / "weights.npz", exit_code=3).stderr
    assert "not a .html file" in told and (tmp_path / "weights.npz").read_bytes() == b"precious"
    error = run.json("report", "-o", tmp_path / "r.html", exit_code=6)["error"]
    assert error["type"] == "DatabaseError"
    assert not (tmp_path / "r.html").exists()


def test_a_page_that_cannot_be_written(run: Command, tmp_path: Path) -> None:
    result_file.write(results(), tmp_path / "bench.json")
    (tmp_path / "file").touch()
    found = run.json(
        "report", "--bench", tmp_path / "bench.json", "-o", tmp_path / "file" / "r.html", exit_code=3
    )
    assert found["error"]["type"] == "ReportError"


def test_without_matplotlib_it_says_what_to_install(run: Command, tmp_path: Path) -> None:
    result_file.write(results(), tmp_path / "bench.json")
    code = "import sys; sys.modules['matplotlib'] = None; from sparsegen.cli.main import main; main()"
    command = [sys.executable, "-c", code, "report", "--bench", str(tmp_path / "bench.json")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 4
    assert "pip install 'matplotlib>=3.8'" in done.stderr
