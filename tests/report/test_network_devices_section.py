"""Networks on several GPUs: the study's file, its chart, and what stands where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench_samples import results, row

from sparsegen.bench.results import result_file
from sparsegen.errors import ResultsError
from sparsegen.report import network_devices
from sparsegen.report.inputs import Inputs, gather
from sparsegen.report.material import Material
from sparsegen.report.sections.network_devices import section

ALIVE = {
    "case": "alive",
    "neurons": 65536,
    "layers": 120,
    "inputs": 60000,
    "ms": 800.0,
    "tera_edges_per_second": 18.0,
    "living": 60000,
    "devices": 1,
    "efficiency": 1.0,
}
TWO = ALIVE | {"ms": 410.0, "tera_edges_per_second": 35.1, "devices": 2, "efficiency": 0.976}
STREAMED = ALIVE | {"weights": "pinned", "over_resident": 1.03}
del STREAMED["efficiency"]


def study_file(tmp_path: Path, device: str, *rows: dict[str, Any]) -> Path:
    path = tmp_path / "network_devices.json"
    document = {"benchmark": "network_devices", "device": device, "date": "2026-11-23", "rows": rows}
    path.write_text(json.dumps(document))
    return path


def test_a_chart_over_gpus_and_a_table_of_streamed_layers(tmp_path: Path) -> None:
    part = results(row())
    read = network_devices.read(study_file(tmp_path, part.device.name, ALIVE, TWO, STREAMED))
    inputs = Inputs(part.device.key, part.device.name, (("made.json", part),), "", (), (), (), (read,))
    found = section(Material.of(inputs))
    (chart,), (table,) = found.charts, found.tables
    assert chart.numbers is not None
    assert [line[1:] for line in chart.numbers.rows] == [
        ("1", "800.0 ms", "18.0", "100.0%"),
        ("2", "410.0 ms", "35.1", "97.6%"),
    ]
    assert "in proportion" in chart.svg()
    assert [line[1:] for line in table.rows] == [("pinned", "800.0 ms", "18.0", "103.0%")]
    assert not found.missing


def test_studies_of_other_devices_are_left_out(tmp_path: Path) -> None:
    part = results(row())
    result_file.write(part, tmp_path / "bench.json")
    other = study_file(tmp_path, "another GPU", ALIVE)
    inputs = gather([tmp_path / "bench.json"], None, None, lambda text: None, [other])
    assert inputs.network_devices == ()
    assert "network_devices.json is of another GPU: a report is of one device." in inputs.notes
    found = section(Material.of(inputs))
    assert found.missing == ("No network was measured on several GPUs (--network-devices).",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "JSON"),
        ('{"benchmark": "other"}', "not a file of `python -m benchmarks.network_devices`"),
        (
            '{"benchmark": "network_devices", "device": "a", "date": "b", "rows": [{"case": "alive"}]}',
            "rows.0.: expected a member 'devices'",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=said):
        network_devices.read(path)
