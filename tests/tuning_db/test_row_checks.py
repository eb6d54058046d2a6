"""Damaged rows: each is passed over by a warning that names it, and breaks no look-up of the others."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tuning_samples import H100, MEASURED_RATES, baseline, checked, failed, predicted, probe, timed, workload

from sparsegen.dispatch.choice import choose
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import export_json, load
from sparsegen.tuning_db.reading import MOST_NAMED
from sparsegen.tuning_db.records import DeviceRates, Outcome
from sparsegen.tuning_db.row_checks import _CHECKS
from sparsegen.tuning_db.store import Store

GOOD, OTHER = workload(n=64), workload(n=96, tag="b")
DEEP = "[" * 5000 + "]" * 5000
DAMAGE: list[tuple[str, str, Any]] = [
    ("variants", "config", "[1, 2]"),
    ("variants", "config", DEEP),
    ("variants", "config", "no JSON"),
    ("variants", "config", b"\xff\x00"),
    ("measurements", "measured_at", "yesterday"),
    ("measurements", "measured_at", 7),
    ("measurements", "median_us", "fast"),
    ("measurements", "median_us", -1.0),
    ("measurements", "median_us", 9e999),
    ("measurements", "median_us", b"\x00"),
    ("measurements", "outcome", "splendid"),
    ("measurements", "sample_count", 0),
    ("measurements", "reason", b"\x00\x01"),
    ("measurements", "registers", "many"),
    ("baselines", "median_us", "fast"),
    ("baselines", "measured_at", "yesterday"),
    ("matrices", "row_cov", "some"),
    ("matrices", "m", -5),
    ("matrices", "nnz", 2**40),
    ("problems", "fields", DEEP),
    ("problems", "fields", "[1]"),
    ("problems", "fields", '{"dtype":"float32","epilogue":"none","k":256,"layout":"row","m":512,"n":0}'),
    ("problems", "operator", b"spmm"),
    ("problems", "digest", 7),
    ("devices", "l2_bytes", "large"),
    ("devices", "name", b"H100"),
    ("predictions", "predicted_us", "soon"),
    ("predictions", "predicted_us", 0.0),
    ("predictions", "model", "?"),
    ("predictions", "registers", -1),
    ("predictions", "predicted_at", "yesterday"),
    ("device_rates", "launch_us", "soon"),
    ("device_rates", "launch_us", 0.0),
    ("device_rates", "measured_at", "yesterday"),
    ("measurements", "measured_as", "lukewarm"),
    ("measurements", "driver", b"\x00"),
    ("probes", "dense_us", -1.0),
    ("probes", "measured_as", "lukewarm"),
    ("probes", "context", "no digest"),
    ("checks", "outcome", "splendid"),
    ("checks", "worst_error", "large"),
]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two workloads on two devices, so that every table has a row which the other one does not need."""
    path = tmp_path / "tuning.db"
    far = replace(H100, key="cuda:other", name="Other")
    with Store.open(path) as store:
        store.add_all(
            [
                timed(9.0, GOOD),
                timed(8.0, GOOD, tile_n=32),
                failed(Outcome.WRONG, "why", tile_n=128),
                replace(timed(7.0, OTHER, tile_n=64), device=far),
            ],
            [baseline(20.0, GOOD), replace(baseline(30.0, OTHER), device=far)],
            [DeviceRates(H100, MEASURED_RATES), DeviceRates(far, MEASURED_RATES)],
            [predicted(7.5, GOOD), replace(predicted(6.5, OTHER), device=far)],
        )
        store.add_probe(probe(9.0, 20.0, GOOD))
        store.add_check(checked(of=GOOD))
    return path


def damage(path: Path, table: str, column: str, value: Any) -> int:
    """Change the table's last row, as an editor of databases would, and say which it is."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        (row,) = connection.execute(f"SELECT max(id) FROM {table}").fetchone()
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (value, row))
    return int(row)


@pytest.mark.parametrize(("table", "column", "value"), DAMAGE)
def test_one_bad_row_breaks_no_look_up(
    database: Path, caplog: pytest.LogCaptureFixture, table: str, column: str, value: Any
) -> None:
    row = damage(database, table, column, value)
    with caplog.at_level(logging.WARNING), Store.open(database, read_only=True) as store:
        assert store.winner(GOOD, H100) is not None
        assert GOOD in [tuned.workload for tuned in store.list_workloads()]
        for _ in range(2):
            store.all_measurements(), store.all_baselines(), store.all_rates(), store.all_predictions()
            store.all_probes(), store.all_checks()
        load(export_json(store)[0], "export")
        assert store.winners("spmm", H100)
        assert choose(GOOD, H100, store).is_hit
        problems = check(store)
    named = [line for line in problems if f"{table} row {row}" in line or f"problem {row}" in line]
    assert len(named) == 1
    warnings = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(warnings) == 1 and str(database) in warnings[0]


def test_every_column_is_checked(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for table, checks in _CHECKS.items():
            columns = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
            assert set(checks) == {c for c in columns if c != "id" and not c.endswith("_id")}, table
            assert not any(is_sound(json) for is_sound in checks.values())


def test_many_damaged_rows_take_a_few_lines_of_a_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "many.db"
    with Store.open(path) as store:
        store.add_all([timed(10.0 + i, tile_n=32, at=i) for i in range(50)], [])
        rows = len(store.all_measurements())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        connection.execute("UPDATE measurements SET median_us = 'x'")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with Store.open(path, read_only=True) as store:
                assert store.all_measurements() == []
                assert len(store.passed_over) == rows > MOST_NAMED + 1
    told = [r.getMessage() for r in caplog.records if "passed over" in r.getMessage()]
    assert len(told) == MOST_NAMED + 1
    assert len({*told}) == len(told)
    assert "sparsegen db check" in told[-1]
