"""Predicted times in the database: kept, exported, forgotten, and never among measured ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tuning_samples import A100, H100, predicted, timed, workload

from sparsegen.errors import ImportFileError
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.exchange import export_json, import_json, load, merge
from sparsegen.tuning_db.forgetting import Selection
from sparsegen.tuning_db.layers import Layers, MemoryLayer, open_to_read
from sparsegen.tuning_db.store import Store

OTHER = workload(n=96, tag="b")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "tuning.db")


def test_a_prediction_is_no_measurement(store: Store) -> None:
    first, again = predicted(9.0), predicted(8.0, at=5)
    other = replace(predicted(7.0, tile_n=32), device=A100)
    for p in (first, again, other, first):
        store.add_prediction(p)
    assert store.predictions(workload(), H100) == [first, again]
    assert store.all_predictions() == [first, other, again]
    assert not store.all_measurements() and not store.list_workloads()
    assert store.winner(workload(), H100) is None
    assert open_to_read(store.location).predictions(workload(), A100) == [other]
    memory = MemoryLayer([], [], predictions=[again, first])
    assert Layers([MemoryLayer([], []), memory]).predictions(workload(), H100) == [first, again]


def test_the_newest_prediction_of_a_variant_counts() -> None:
    old, new, other = predicted(5.0), predicted(9.0, at=9), predicted(7.0, at=1, tile_n=32)
    assert ranking.predicted([new, other, old]) == [other, new]


def test_predictions_are_exported_imported_and_merged(store: Store, tmp_path: Path) -> None:
    store.add_measurement(timed(10.0))
    assert json.loads(export_json(store)[0])["version"] == 1, "as ever where nothing was predicted"
    mine = [predicted(9.0), replace(predicted(7.0, OTHER), device=A100, spill_bytes=0)]
    store.add_all([], [], predictions=mine)
    text, _ = export_json(store)
    assert json.loads(text)["version"] == 4
    assert list(load(text, "export").predictions) == mine
    with Store.open(tmp_path / "other.db") as other:
        assert merge(other, store).predictions == 2
        assert import_json(other, text, "export").predictions == 0
        assert other.all_predictions() == mine


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("predicted_us", 0, "> 0"),
        ("basis", "a dream", "one of model, scaled"),
        ("model", "x", "text like"),
        ("registers", -1, "an integer"),
        ("outcome", "ok", "no member 'outcome'"),
        ("workload", 1, "an integer"),
    ],
)
def test_hostile_predictions_are_refused(store: Store, name: str, value: object, words: str) -> None:
    store.add_prediction(predicted(9.0))
    document = json.loads(export_json(store)[0])
    document["predictions"][0][name] = value
    with pytest.raises(ImportFileError, match=words):
        load(json.dumps(document), "export")
    older = json.loads(export_json(store)[0]) | {"version": 3}
    with pytest.raises(ImportFileError, match="no member 'predictions'"):
        load(json.dumps(older), "export")


def test_predictions_are_forgotten_like_measurements(store: Store) -> None:
    store.add_all([timed(10.0)], [], predictions=[predicted(9.0, tile_n=32), predicted(8.0, OTHER)])
    assert store.count(Selection(failed_only=True)).predictions == 0
    store.forget(Selection(failed_only=True))
    assert len(store.all_predictions()) == 2
    found = store.forget(Selection(matrix=OTHER.fingerprint[:12]))
    assert (found.measurements, found.predictions) == (0, 1)
    assert [p.predicted_us for p in store.all_predictions()] == [9.0]
    store.forget(Selection(family="csr_spmm"))
    assert not store.all_predictions() and not store.all_measurements() and not store.damage()
