"""Tuning before a row: what --tune takes, what is not tuned twice, and what is recorded of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from bench_fakes import DEVICE, cases

from sparsegen.bench.baseline.inputs import Inputs, InputsMaker
from sparsegen.bench.results.results import Cell, Kind, Status, Timing
from sparsegen.bench.run import tuned
from sparsegen.bench.run.tuned import budget_of, ensure_tuned, record_baselines, tune_side_by_side
from sparsegen.errors import ConfigError, DatabaseError, NoVariantError, SparsegenError
from sparsegen.kernels import family
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType
from sparsegen.tuning.tuner import Budget, Effort
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    return InputsMaker(tmp_path).make(cases(1)[0], DType.FLOAT32)


def workload(inputs: Inputs) -> Workload:
    return Workload(inputs.problem, inputs.fingerprint, inputs.features)


def test_budgets() -> None:
    assert budget_of("off") is None
    assert budget_of("quick") == Budget(effort=Effort.QUICK)
    assert budget_of("2.5") == Budget(seconds=2.5)
    assert budget_of("64-trials") == Budget(trials=64)
    for word in (
        "max",
        "soon",
        "nan",
        "inf",
        "0",
        "-1",
        "",
        "0-trials",
        "-1-trials",
        "2.5-trials",
        "-trials",
    ):
        with pytest.raises(ConfigError):
            budget_of(word)


def test_a_finished_tuning_is_not_repeated(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement alone is an interrupted tuning; a finalist's ends one."""
    calls: list[object] = []

    def tune(*arguments: object, **options: object) -> SimpleNamespace:
        calls.append(options["budget"])
        return SimpleNamespace(was_interrupted=len(calls) == 2)

    monkeypatch.setattr(tuned, "tune", tune)
    db = str(tmp_path / "t.db")
    ensure_tuned(inputs, (), DEVICE, db, Budget(seconds=1))
    variant = Variant(family("csr_spmm").config(tile_n=32), "0" * 64)
    for final in (False, True):
        with Store.open(db) as store:
            sample = Sample(1.0, 1.0, 1.0, 3)
            store.add_measurement(
                Measurement(workload(inputs), DEVICE, variant, Outcome.OK, sample, final=final)
            )
        if not final:
            with pytest.raises(KeyboardInterrupt):
                ensure_tuned(inputs, (), DEVICE, db, Budget(seconds=1))
    ensure_tuned(inputs, (), DEVICE, db, Budget(seconds=1))
    assert calls == [Budget(seconds=1)] * 2


@pytest.mark.parametrize("error", [NoVariantError, SparsegenError])
def test_why_a_search_failed_is_said(
    error: type[SparsegenError],
    inputs: Inputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def tune(*arguments: object, **options: object) -> None:
        raise error("none of the 7 variants tried")

    monkeypatch.setattr(tuned, "tune", tune)
    ensure_tuned(inputs, (), DEVICE, str(tmp_path / "t.db"), Budget(seconds=1))
    assert "none of the 7 variants tried" in caplog.text


def test_a_database_that_fails_ends_the_run(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(*arguments: object, **options: object) -> None:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(tuned, "tune", tune)
    with pytest.raises(DatabaseError):
        ensure_tuned(inputs, (), DEVICE, str(tmp_path / "t.db"), Budget(seconds=1))


def test_others_times_are_recorded_once(inputs: Inputs, tmp_path: Path) -> None:
    def cell(name: str, us: float | None, kind: Kind = Kind.SPARSE) -> Cell:
        if us is None:
            return Cell(name, kind, Arithmetic.FLOAT32, Status.CRASHED, reason="fell over")
        return Cell(
            name,
            kind,
            Arithmetic.FLOAT32,
            Status.OK,
            "implementation",
            timing=Timing(us, us - 1, us + 1, 100),
        )

    db = str(tmp_path / "t.db")
    cells = [cell("cublas", 5.0, Kind.DENSE), cell("cusparse-csr", None), cell("torch-bsr", 3.0)]
    for _ in range(2):
        record_baselines(inputs, DEVICE, db, cells, {"cublas": "130001"}, L2.COLD)
    with Store.open(db) as store:
        found = store.baselines(workload(inputs), DEVICE)
    assert [(b.name, b.version, b.sample.median_us) for b in found] == [
        ("cublas", "cuBLAS 130001 (implementation)", 5.0)
    ]


def test_rows_are_not_tuned_on_several_models() -> None:
    other = replace(DEVICE, key="other", name="Other")
    with pytest.raises(ConfigError, match="devices of one model"):
        tune_side_by_side(
            [], [], [DEVICE, other], None, "quick", jobs=1, deadline=None, done=lambda number, pair: None
        )
