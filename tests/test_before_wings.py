"""What sparsegen wrote before problems were stored by their fields is still read: database, export, operator."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen import api
from sparsegen.backends.emulator import device as emulator_device
from sparsegen.dispatch.chosen import How
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import OPERATORS, DType, Epilogue, ItemValues, Layout, SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import dump, export_json, import_file, load
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store

BEFORE = Path(__file__).parent / "fixtures" / "before_wings"
WORKLOADS: list[dict[str, Any]] = [  # as they were tuned, on the matrix in call.npz
    {"n": 16},
    {"n": 16, "layout": "column", "epilogue": "bias_relu", "dtype": "float16"},
    {"n": 8, "batch": 2, "item_values": "own"},
    {"operator": "sddmm", "k": 16, "epilogue": "scale"},
    {"operator": "sparse_softmax"},
    {"operator": "sparse_softmax_backward", "dtype": "float16", "batch": 2},
    {"operator": "sparse_attention", "k": 16, "dtype": "float16"},
]
OPERATORS_THEN = {"spmm", "sddmm", "sparse_softmax", "sparse_softmax_backward", "sparse_attention"}


@pytest.fixture
def call() -> dict[str, Any]:
    with np.load(BEFORE / "call.npz") as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture
def matrix(call: dict[str, Any]) -> CsrMatrix:
    return CsrMatrix((64, 48), call["row_offsets"], call["columns"], call["values"])


@pytest.fixture(params=["as it is", "migrated", "imported"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tuning.db"
    if request.param == "imported":
        with Store.open(path) as store:
            assert import_file(store, BEFORE / "export.json").measurements > 0
        return path
    shutil.copy(BEFORE / "tuning.db", path)
    if request.param == "migrated":
        with Store.open(path) as store:
            assert store.found_schema == "0002"
    return path


def test_every_workload_is_found(database: Path, matrix: CsrMatrix) -> None:
    assert {options.get("operator", "spmm") for options in WORKLOADS} == OPERATORS_THEN <= set(OPERATORS)
    for options in WORKLOADS:
        choice = api.lookup(matrix, **options, device="emulator", db=database)
        assert choice.how is How.EXACT, options
    with Store.open(database, read_only=True) as store:
        assert len(store.list_workloads()) == len(WORKLOADS) and not store.unknown_problems()
        assert len(store.list_workloads(operator="spmm")) == 3
        assert check(store) == []
        kept = {t.workload.problem for t in store.list_workloads(dtype="float32", operator="spmm")}
    assert kept == {
        SpmmProblem(64, 48, 16),
        SpmmProblem(64, 48, 8, batch=2, item_values=ItemValues.OWN),
    }


def test_exports_are_what_they_were(database: Path) -> None:
    text = (BEFORE / "export.json").read_text(encoding="utf-8")
    assert dump(load(text, "export.json")) == text
    with Store.open(database, read_only=True) as store:
        assert export_json(store) == (text, 0)


def test_a_saved_operator_computes_what_it_did(
    call: dict[str, Any], matrix: CsrMatrix, emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    operator = sparsegen.load_operator(BEFORE / "operator.npz", device=emulator_device())
    assert operator.problem == SpmmProblem(64, 48, 16, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RELU)
    assert np.array_equal(operator(call["b"]), call["c"])
    operator.update_values(2 * matrix.values)
    assert not np.array_equal(operator(call["b"]), call["c"])
    operator.update_values(matrix.values)
    assert np.array_equal(operator(call["b"]), call["c"])


def test_seeds_are_readable(caplog: pytest.LogCaptureFixture) -> None:
    seeds.cache_clear()
    assert len(seeds().list_workloads()) > 100
    assert "left out" not in caplog.text
