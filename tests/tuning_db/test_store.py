"""The store: what goes in comes out, from many threads and processes, and through every kind of failure."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from database_samples import fill
from patience import LONG
from tuning_samples import (
    A100,
    H100,
    MEASURED_RATES,
    START,
    baseline,
    failed,
    other_operators,
    timed,
    variant,
    workload,
)

from sparsegen.errors import (
    DatabaseError,
)
from sparsegen.operators import DType, Epilogue, Layout
from sparsegen.tuning_db import conversion
from sparsegen.tuning_db import engine as engine_module
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import export_json, load
from sparsegen.tuning_db.layers import Layers, MemoryLayer
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.records import DeviceRates, Outcome
from sparsegen.tuning_db.store import Store


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that does not exist yet; a schema of its own on the PostgreSQL server."""
    if request.param == "sqlite":
        yield str(tmp_path / "new folder" / "tuning.db")
        return
    server = request.getfixturevalue("postgres")
    import psycopg

    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("DROP SCHEMA IF EXISTS sparsegen_test CASCADE")
        admin.execute("CREATE SCHEMA sparsegen_test")
        yield f"{server}?options=-csearch_path%3Dsparsegen_test"
        admin.execute("DROP SCHEMA sparsegen_test CASCADE")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


def test_what_goes_in_comes_out(location: str) -> None:
    good = timed(12.5, tile_n=32, index_bits=32)
    bad = failed(Outcome.CRASHED, "illegal\x1b[31m address\nat line 3", tile_n=128, at=1)
    with Store.open(location) as store:
        store.add_measurement(good)
        store.add_measurement(bad)
        store.add_baseline(baseline(20.0))
    with Store.open(location) as store:
        assert store.measurements(workload(), H100) == [
            good,
            replace(bad, reason="illegal�[31m address\nat line 3"),
        ]
        assert store.baselines(workload(), H100) == [baseline(20.0)]
        assert store.winner(workload(), H100) == good
        assert store.measurements(workload(), A100) == store.measurements(workload(tag="other"), H100) == []
        assert store.winner(workload(n=65), H100) is None


def test_the_last_rates_of_a_device_count(location: str) -> None:
    later = replace(MEASURED_RATES, launch_us=2.5)
    with Store.open(location) as store:
        assert store.rates(H100) is None
        store.add_rates(DeviceRates(H100, later, START + timedelta(seconds=1)))
        before = store.generation
        for _ in range(2):
            store.add_rates(DeviceRates(H100, MEASURED_RATES, START))
        assert store.generation > before and len(store.all_rates()) == 2
    with Store.open(location) as store:
        assert store.rates(H100) == later and store.rates(A100) is None
        below = MemoryLayer([], [], [DeviceRates(d, MEASURED_RATES, START) for d in (H100, A100)])
        layers = Layers([store, below])
        assert layers.rates(H100) == later and layers.rates(A100) == MEASURED_RATES
        assert layers.rates(replace(H100, key="another")) is None


def test_problems_of_every_operator_come_back(location: str) -> None:
    records = [timed(3.0), *other_operators()]
    with Store.open(location) as store:
        for _ in range(2):
            store.add_all(records, [])
    with Store.open(location) as store:
        assert store.all_measurements() == records
        for m in records:
            assert store.measurements(m.workload, H100) == [m]
        assert [t.workload for t in store.list_workloads(operator="sparse_softmax_backward")] == [
            records[-1].workload
        ]


def test_adding_twice_adds_once(location: str) -> None:
    with Store.open(location) as store:
        before = store.generation
        for _ in range(2):
            store.add_all([timed(1.0), timed(1.0, at=1)], [baseline(2.0)])
        assert len(store.measurements(workload(), H100)) == 2
        assert len(store.baselines(workload(), H100)) == 1
        assert store.generation > before


def test_all_or_nothing(location: str) -> None:
    broken = replace(timed(1.0, at=1), sample=None)
    with Store.open(location) as store:
        with pytest.raises(ValueError, match="sample"):
            store.add_all([timed(1.0), broken], [])
        assert store.all_measurements() == []


def test_listings_and_winners_narrow(location: str) -> None:
    column = workload(tag="column")
    column = replace(column, problem=replace(column.problem, layout=Layout.COLUMN, epilogue=Epilogue.BIAS))
    with Store.open(location) as store:
        store.add_measurement(timed(3.0, tile_n=32))
        store.add_measurement(timed(2.0, tile_n=64, at=1))
        store.add_measurement(timed(5.0, workload(tag="b"), device=A100))
        store.add_measurement(timed(7.0, column))
        store.add_measurement(failed(Outcome.WRONG, at=2, tile_n=128))
        listed = store.list_workloads()
        assert [(t.measurements, t.ok) for t in listed if t.workload == workload()] == [(3, 2)]
        assert len(listed) == 3 and len(store.list_workloads(like=H100)) == 2
        assert [t.workload for t in store.list_workloads(epilogue=Epilogue.BIAS)] == [column]
        assert [t.workload for t in store.list_workloads(layout="column", n=64)] == [column]
        assert store.list_workloads(operator="sddmm") == store.list_workloads(of_another_operator=1) == []
        winners = store.winners("spmm", H100, dtype=DType.FLOAT32, layout=Layout.ROW)
        assert [w.variant for w in winners] == [variant(tile_n=64)]
        assert store.winners("spmm", H100, dtype=DType.FLOAT16, layout=Layout.ROW) == []


STRANGERS = {
    "an operator of a plug-in": ("row_sums", '{"dtype":"float32","k":3,"m":4}', "no operator 'row_sums'"),
    "a field of a newer version": (
        "spmm",
        '{"dtype":"float32","epilogue":"none","k":256,"layout":"row","m":128,"n":8,"order":"z"}',
        "not as this sparsegen writes",
    ),
    "a word of a newer version": (
        "spmm",
        '{"dtype":"float8","epilogue":"none","k":256,"layout":"row","m":128,"n":8}',
        "'float8' is not a valid DType",
    ),
    "a size out of range": (
        "spmm",
        '{"dtype":"float32","epilogue":"none","k":256,"layout":"row","m":128,"n":0}',
        "n = 0 is outside",
    ),
    "a missing field": ("spmm", '{"k":256}', "no problem of spmm"),
    "no object": ("spmm", "[1]", "no problem of spmm"),
    "no JSON": ("spmm", "garbage", "no problem of spmm"),
}


@pytest.mark.parametrize(("operator", "fields", "words"), STRANGERS.values(), ids=list(STRANGERS))
def test_problems_of_other_versions_are_passed_over(
    location: str, operator: str, fields: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    digest = conversion.problem_digest(operator, fields)
    with Store.open(location) as store:
        store.add_all([timed(3.0), timed(5.0, workload(tag="b"), at=1)], [baseline(2.0)])
        with store._writing() as connection:
            query = "UPDATE problems SET operator = %s, fields = %s, digest = %s"
            if store._engine.dialect.name == "sqlite":
                query = query.replace("%s", "?")
            connection.exec_driver_sql(query, (operator, fields, digest))
        store.add_all([timed(4.0, at=2)], [])
    with Store.open(location, read_only=True) as store:
        for _ in range(2):
            assert store.all_measurements() == store.measurements(workload(), H100) == [timed(4.0, at=2)]
            assert store.all_baselines() == [] and len(store.list_workloads()) == 1
        [warning] = caplog.messages
        assert store.location in warning and "problem 1 is passed over" in warning and words in warning
        [told] = check(store)
        assert told.startswith("problem 1: ") and words in told and "its 2 measurements" in told
        text, left_out = export_json(store)
        assert left_out == 2 and len(load(text, "x").measurements) == 1


def write_many(location: str, tag: int, count: int) -> None:
    with Store.open(location) as store:
        for i in range(count):
            store.add_measurement(timed(1.0 + i, at=1000 * tag + i))


def test_processes_open_and_write_at_once(location: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=write_many, args=(location, tag, 30)) for tag in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LONG)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with Store.open(location) as store:
        assert len(store.all_measurements()) == 90
        assert store.damage() == []


def test_threads_share_a_store(location: str) -> None:
    with Store.open(location) as store:
        threads = [
            threading.Thread(
                target=lambda tag=tag: [
                    store.add_measurement(timed(1.0, at=100 * tag + i)) for i in range(20)
                ]
            )
            for tag in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.all_measurements()) == 80


def write_until_killed(location: str, pipe: int) -> None:
    with Store.open(location) as store:
        for i in range(100000):
            store.add_measurement(timed(1.0, at=i))
            os.write(pipe, b".")


def test_kill_minus_9_loses_nothing_that_was_added(path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        write_until_killed(str(path), writer)
    os.close(writer)
    confirmed = 0
    while confirmed < 25:
        confirmed += len(os.read(reader, 64))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reader, 64):
        confirmed += len(more)
    os.close(reader)
    with Store.open(path) as store:
        assert len(store.all_measurements()) in (confirmed, confirmed + 1)
        assert store.damage() == []


def test_reading_follows_a_writer(path: Path) -> None:
    with Store.open(path) as writer, Store.open(path, read_only=True) as reader:
        assert reader.all_measurements() == []
        writer.add_measurement(timed(1.0))
        assert len(reader.all_measurements()) == 1, "what is still in the log is seen"


def test_a_file_system_without_wal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine_module.pragma
    monkeypatch.setattr(
        engine_module, "pragma", lambda e, *texts: [("delete",)] if "WAL" in texts[0] else real(e, *texts)
    )
    with Store.open(path) as store:
        store.add_measurement(timed(1.0))
        assert real(store._engine, "journal_mode")[0][0] == "delete"
        assert real(store._engine, "synchronous")[0][0] == 2, "FULL: NORMAL could damage the file"


def test_sqlite_is_set_up_for_us(path: Path) -> None:
    with Store.open(path, lock_timeout=7.0) as store:
        facts = {
            name: engine_module.pragma(store._engine, name)[0][0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert facts == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "busy_timeout": 7000}


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("sqlite://", "must name a file"),
        ("nonsense://x", "nonsense"),
        ("postgresql://nobody@127.0.0.1:1/none", "check the URL"),
    ],
)
def test_places_that_are_none(location: str, words: str) -> None:
    if location.startswith("postgresql"):
        pytest.importorskip("psycopg")
    with pytest.raises(DatabaseError, match=words):
        Store.open(location)


@pytest.mark.parametrize(
    ("location", "driver", "remedy"),
    [
        ("postgresql://h/x", "psycopg", "pip install 'psycopg"),
        ("postgresql+psycopg2://h/x", "psycopg2", "install the package that has it"),
        ("mysql://h/x", "MySQLdb", "install the package that has it"),
    ],
)
def test_a_missing_driver(monkeypatch: pytest.MonkeyPatch, location: str, driver: str, remedy: str) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(DatabaseError, match=f"the driver '{driver}' is missing; {remedy}"):
        Store.open(location)


def test_reading_what_is_not_there(path: Path) -> None:
    with pytest.raises(DatabaseError, match="no database"):
        Store.open(path, read_only=True)
    with pytest.raises(DatabaseError, match="not a file"):
        Store.open(path.parent)
    assert not path.exists()


def test_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "50% of ? & #1 ü.db"
    fill(path)
    assert path.is_file()
    with Store.open(f"sqlite:///{path}".replace("%", "%25").replace("?", "%3F").replace("#", "%23")) as store:
        assert store.location.endswith(".db")
    with Store.open(path, read_only=True) as store:
        assert len(store.all_measurements()) == 3


def test_a_password_is_not_shown() -> None:
    location = Location.parse("postgresql://me:secret@host/db")
    assert "secret" not in str(location)


def test_opening_again_keeps_the_locks_of_open_connections(tmp_path: Path) -> None:
    """Otherwise another process would take itself for the last one and remove the log that this one reads from."""
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        store.add_measurement(timed(10.0))
        log = path.with_name("tuning.db-wal")
        assert log.exists()
        with Store.open(path, read_only=True) as reader:
            assert reader.all_measurements()
            Store.open(path, read_only=True).close()
            other = [sys.executable, "-c", f"import sqlite3; c = sqlite3.connect({str(path)!r}); "
                     "print(c.execute('SELECT count(*) FROM measurements').fetchone()); c.close()"]  # fmt: skip
            subprocess.run(other, check=True, capture_output=True)
            assert log.exists()
            assert reader.all_measurements()
