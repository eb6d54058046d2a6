"""The benchmark of several devices, on two emulators that sleep: what it says, not how fast they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import many_devices
from sparsegen import backends
from sparsegen.settings import Settings
from sparsegen.tuning.report import Budget


def test_the_list_has_enough_workloads() -> None:
    listed = many_devices.tasks(backends.emulator_device(), 64, Budget(seconds=1), sleeping=False)
    assert len({(task.name.split(" #")[0], task.matrix.args) for task in listed}) == 64  # type: ignore[attr-defined]


def test_it_compares_all_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator_settings: Settings
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv("SPARSEGEN_EMULATORS", "2")
    file = tmp_path / "result.json"
    devices = "emulator,emulator:1"
    many_devices.main(["--devices", devices, "--workloads", "4", "--trials", "1", "--sleep", "-o", str(file)])
    found = json.loads(file.read_text())
    assert found["devices"] == 2 and found["workloads"] == 4 and found["failed"] == 0
    assert set(found["searches_on_each"]) == {"emulator", "emulator:1"}
    assert sum(found["searches_on_each"].values()) == 4
    assert (
        found["seconds_on_one"] > 0
        and found["times_faster"] > 0
        and found["winner_all_over_one"]["geomean"] > 0
    )
