"""Databases that lie over each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from database_samples import RECORDS
from tuning_samples import (
    H100,
    baseline,
    timed,
    workload,
)

from sparsegen.settings import Settings
from sparsegen.tuning_db.layers import Layers, MemoryLayer, open_layers
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store


def settings_with(db: Path) -> Settings:
    return Settings.from_environment({"SPARSEGEN_DB": str(db), "HOME": str(db.parent)})


def test_layers_lie_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = workload(tag="b")
    with (
        Store.open(tmp_path / "user.db") as user,
        Store.open(tmp_path / ".sparsegen" / "tuning.db") as project,
    ):
        user.add_measurement(timed(9.0))
        project.add_all([timed(1.0), timed(2.0, other)], [baseline(5.0)])
    with open_layers(settings_with(tmp_path / "user.db")) as layers:
        assert [m.sample.median_us for m in layers.measurements(workload(), H100) if m.sample] == [9.0]
        assert [m.sample.median_us for m in layers.measurements(other, H100) if m.sample] == [2.0]
        assert layers.baselines(workload(), H100) == [baseline(5.0)]
        assert {t.workload for t in layers.list_workloads(like=H100)} >= {workload(), other}


def test_no_database_yet_leaves_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_layers(settings_with(tmp_path / "none.db")) as layers:
        assert layers.layers == [seeds()]
    assert list(tmp_path.iterdir()) == []


def test_a_memory_layer_answers_as_a_store(store: Store) -> None:
    store.add_all(RECORDS.measurements, RECORDS.baselines)
    memory = MemoryLayer(RECORDS.measurements, RECORDS.baselines)
    for layer in (memory, Layers([memory])):
        for key in (workload(), workload(n=128, tag="b"), workload(tag="none")):
            assert layer.measurements(key, H100) == store.measurements(key, H100)
            assert layer.baselines(key, H100) == store.baselines(key, H100)
        assert layer.list_workloads(like=H100) == store.list_workloads(like=H100)
