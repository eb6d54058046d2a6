"""A SQLite file read without SQLAlchemy gives what a `Store` gives, and is left alone where a `Store` is needed."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tuning_samples import (
    H100,
    MEASURED_RATES,
    START,
    baseline,
    failed,
    other_operators,
    timed,
    workload,
)

from sparsegen.errors import DatabaseCorruptError, DatabaseError, DatabaseNewerError
from sparsegen.tuning_db.layers import open_to_read
from sparsegen.tuning_db.records import DeviceRates, Outcome
from sparsegen.tuning_db.sqlite_reader import SqliteReader, open_sqlite
from sparsegen.tuning_db.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with something of everything."""
    file = tmp_path / "tuning.db"
    with Store.open(file) as store:
        store.add_all(
            [
                timed(10.0),
                timed(9.0, workload(n=128, tag="b"), tile_n=128, at=2),
                failed(Outcome.WRONG, "off", at=1, tile_n=32),
                *other_operators(),
            ],
            [baseline(5.0), baseline(7.0, baseline="cusparse")],
            [DeviceRates(H100, MEASURED_RATES, START)],
        )
    return file


def reader_of(path: Path) -> SqliteReader:
    reader = open_sqlite(path)
    assert reader is not None
    return reader


def test_it_answers_as_a_store(path: Path) -> None:
    reader = reader_of(path)
    with Store.open(path, read_only=True) as store:
        for key in (workload(), workload(n=128, tag="b"), workload(tag="none")):
            assert reader.measurements(key, H100) == store.measurements(key, H100)
            assert reader.baselines(key, H100) == store.baselines(key, H100)
        assert reader.all_measurements() == store.all_measurements() != []
        assert reader.all_baselines() == store.all_baselines() != []
        assert reader.rates(H100) == store.rates(H100) == MEASURED_RATES
        assert reader.list_workloads() == store.list_workloads() != []
        kind = workload().problem.kind
        of_kind = reader.list_workloads(kind=kind, like=H100)
        assert of_kind == store.list_workloads(kind=kind, like=H100)
        assert of_kind == [t for t in store.list_workloads(like=H100) if t.workload.problem.kind == kind]
        assert 0 < len(of_kind) < len(reader.list_workloads())
    reader.close()


def test_what_is_written_meanwhile_is_read_and_closing_ends_nothing(path: Path) -> None:
    reader = reader_of(path)
    assert len(reader.measurements(workload(), H100)) == 2
    with Store.open(path) as store:
        store.add_measurement(timed(8.0, at=5))
        assert len(reader.measurements(workload(), H100)) == 3
    reader.close()
    assert len(reader.measurements(workload(), H100)) == 3, "a look-up under way goes on"
    reader.close()


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def measured_in(file: Path, copy: Path) -> int:
    """Number of measurements in a copy of the file alone, without its log."""
    shutil.copyfile(file, copy)
    with Store.open(copy, read_only=True) as store:
        return len(store.all_measurements())


def test_the_file_alone_is_whole_after_every_writer_beside_a_reader(path: Path, tmp_path: Path) -> None:
    reader = reader_of(path)
    before = len(reader.all_measurements())
    for number in (1, 2):
        with Store.open(path) as store:
            store.add_measurement(timed(8.0, at=5 + number))
        assert measured_in(path, tmp_path / f"copy{number}.db") == before + number
        assert log_of(path).stat().st_size == 0, "what is left would overlay a file put in this one's place"
    assert len(reader.all_measurements()) == before + 2
    reader.close()


def test_the_log_that_a_killed_writer_left_is_emptied_by_the_next(path: Path, tmp_path: Path) -> None:
    left = tmp_path / "left.db"
    with Store.open(path) as store:
        store.add_measurement(timed(8.0, at=5))
        shutil.copyfile(path, left)
        shutil.copyfile(log_of(path), log_of(left))
    reader = reader_of(left)
    before = len(reader.all_measurements())
    assert measured_in(left, tmp_path / "copy.db") == before - 1
    Store.open(left).close()
    assert measured_in(left, tmp_path / "copy.db") == before
    reader.close()


def test_threads_share_a_reader(path: Path) -> None:
    reader, found = reader_of(path), []

    def ask() -> None:
        for _ in range(20):
            found.append(len(reader.measurements(workload(), H100)))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 160
    reader.close()


def test_other_schemas_are_a_stores_business(path: Path, tmp_path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE sparsegen_version SET version_num = '9999'")
    connection.close()
    assert open_sqlite(path) is None
    with pytest.raises(DatabaseNewerError, match="9999"):
        open_to_read(path)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE things (id INTEGER)")
    connection.close()
    with pytest.raises(DatabaseCorruptError, match="things"):
        open_to_read(foreign)


def test_what_cannot_be_read_is_a_typed_error(path: Path, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"no database at all" * 100)
    with pytest.raises(DatabaseCorruptError, match="not a SQLite database"):
        open_to_read(garbage)
    with pytest.raises(DatabaseError, match="there is no database"):
        open_to_read(tmp_path / "none.db")


def test_damaged_rows_are_passed_over_as_by_a_store(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE variants SET config = '[]' || id WHERE id = 1")
        connection.execute("UPDATE baselines SET measured_at = 'yesterday' WHERE contender = 'cublas'")
    connection.close()
    reader = reader_of(path)
    with Store.open(path, read_only=True) as store:
        assert reader.all_measurements() == store.all_measurements() != []
        assert [b.name for b in reader.all_baselines()] == ["cusparse"]
        assert store.all_baselines() == reader.all_baselines()
        assert reader.passed_over == store.passed_over and "variants row 1" in reader.passed_over
    reader.close()


def test_the_newest_rates_count(path: Path) -> None:
    with Store.open(path) as store:
        later = DeviceRates(H100, MEASURED_RATES.__class__(*[9.0] * 7), START + timedelta(hours=1))
        store.add_rates(later)
    reader = reader_of(path)
    assert reader.rates(H100) == later.rates
    reader.close()
