"""The script that holds predicted against measured times, on made-up result files of two devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import predicted_variants as script
from sparsegen.operators import DType
from sparsegen.system.publish import publish_text
from sparsegen.tuning.prediction.targets import find_target
from sparsegen.tuning_db.records import Workload


def variant(number: int, model_us: float, us: float) -> dict[str, Any]:
    picked = ("predicted", "heuristic", "random")[number % 3]
    return {
        "family": "csr_spmm",
        "config": {"tile_n": number},
        "picked": picked,
        "model_us": model_us,
        "us": us,
    }


def rows(factor: float) -> list[dict[str, Any]]:
    """Makes ten variants whose fastest the model puts second; a like device takes ``factor`` of all times."""
    variants = [variant(i, 10.0 + i, factor * (20.0 + i)) for i in range(10)]
    variants[1]["us"] = factor * 10.0
    return [{"workload": "w", "variants": variants}, {"workload": "lone", "variants": [variant(0, 1.0, 1.0)]}]


def test_quality_of_the_first_variants() -> None:
    assert script.quality(rows(1.0)) == {"model_us": (pytest.approx(2.0), pytest.approx(1.0))}
    worst = rows(1.0)
    for v in worst[0]["variants"]:
        v["model_us"] = 1.0
    assert script.quality(worst)["model_us"] == (pytest.approx(2.9), pytest.approx(2.2)), (
        "ties count as the worst"
    )


def test_times_of_another_device_are_scaled() -> None:
    """The second device is 1.4 times faster by the model too: its order is known wherever it was measured."""
    here = rows(0.7)
    for v in here[0]["variants"]:
        v["model_us"] *= 0.7
    here[0]["variants"].append(variant(77, 1.0, 70.0))
    found = script.scaled(rows(1.0), here)
    assert [v["scaled_us"] for v in found[0]["variants"][:10]] == pytest.approx(
        [v["us"] for v in here[0]["variants"][:10]]
    )
    assert "scaled_us" not in found[0]["variants"][10]
    assert script.quality(found)["scaled_us"] == (pytest.approx(1.0), pytest.approx(1.0))


def test_the_report_has_a_table_and_a_plot(tmp_path: Path) -> None:
    files = []
    for name, factor in (("H100", 1.0), ("H200", 0.7)):
        files.append(tmp_path / f"{name}.json.xz")
        publish_text(files[-1], json.dumps({"device": name, "rows": rows(factor)}))
    pytest.importorskip("matplotlib")
    output = tmp_path / "plot.svg"
    found = CliRunner().invoke(script.main, ["report", *map(str, files), "-o", str(output)])
    assert found.exit_code == 0, found.output
    assert "| H100 | cost model | 2 | 2.000 | 1.000 |" in found.output
    assert "| H200 | H100, scaled | 2 | 1.000 | 1.000 |" in found.output
    assert "scaled from the other device" in output.read_text()


def test_what_is_recorded_is_predicted_heuristic_and_random() -> None:
    workload, dtype = script.WORKLOADS[1]
    assert dtype is DType.FLOAT32
    known = Workload.of(workload.problem(dtype), workload.matrix())
    chosen = script.candidates(known, find_target("h200").device)
    counts = [list(chosen.values()).count(picked) for picked in ("predicted", "heuristic", "random")]
    assert counts[0] == script.FIRST and counts[1] > 2 and counts[2] > script.RANDOM // 2
