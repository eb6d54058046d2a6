"""The SQLite file of the packaged tuning results holds what the reviewed JSON says, however it comes to be."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from tuning_samples import H100, MEASURED_RATES, START, baseline, failed, timed

from sparsegen.tuning_db import schema_versions, seed_file, seeds_reader
from sparsegen.tuning_db.exchange import Content, dump, load
from sparsegen.tuning_db.models import Base
from sparsegen.tuning_db.records import DeviceRates, Outcome
from sparsegen.tuning_db.seeds_reader import packaged
from sparsegen.tuning_db.sqlite_reader import SqliteReader, open_sqlite
from sparsegen.tuning_db.store import Store

ROOT = Path(__file__).parents[2]
DOCUMENTS = seed_file.seed_documents(seeds_reader.FOLDER)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a way of its own to the seeds."""
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "seeds"


def fresh() -> SqliteReader:
    """The packaged results through a connection of its own."""
    return packaged.__wrapped__()


def test_the_file_holds_what_the_strict_reader_makes_of_the_json(cache: Path) -> None:
    documents = [load(file.read_text(encoding="utf-8"), file.name) for file in DOCUMENTS]
    reader = fresh()
    measured = [m for content in documents for m in content.measurements]
    compared = [b for content in documents for b in content.baselines]
    assert len(measured) > 1000 and len(compared) > 100
    assert reader.all_measurements() == sorted(measured, key=lambda m: m.measured_at)
    assert reader.all_baselines() == sorted(compared, key=lambda b: b.measured_at)
    assert reader.all_rates() == [r for content in documents for r in content.rates]
    assert reader.unknown_problems() == []
    reader.close()


def test_rates_and_failures_are_read_too(tmp_path: Path) -> None:
    """What today's seeds have none of."""
    measured = (timed(3.0), failed(Outcome.CRASHED, "boom", at=1))
    content = Content(measured, (baseline(4.0),), (DeviceRates(H100, MEASURED_RATES, START),))
    document = tmp_path / "some.json"
    document.write_text(dump(content))
    seed_file.write([document], tmp_path / "some.db")
    reader = open_sqlite(tmp_path / "some.db")
    assert reader is not None
    assert reader.all_measurements() == list(content.measurements)
    assert reader.all_baselines() == list(content.baselines)
    assert reader.all_rates() == list(content.rates)
    reader.close()


def test_its_tables_are_those_of_the_models(tmp_path: Path) -> None:
    seed_file.write([], tmp_path / "seeds.db")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'seeds.db'}")
    inspector = sa.inspect(engine)
    assert set(schema_versions.TABLES) == set(Base.metadata.tables)
    assert set(seed_file.TABLES) == {*schema_versions.TABLES, schema_versions.VERSION_TABLE}
    assert seed_file.SCHEMA_VERSION == schema_versions.HEAD
    for name, table in Base.metadata.tables.items():
        assert {c["name"] for c in inspector.get_columns(name)} == set(table.columns.keys()), name
    engine.dispose()
    Store.open(tmp_path / "seeds.db", read_only=True).close()


def test_it_is_made_once_for_each_state_of_the_json(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "seeds"
    folder.mkdir()
    document = folder / "some.json"
    document.write_text(DOCUMENTS[0].read_text(encoding="utf-8"))
    monkeypatch.setattr(seeds_reader, "FOLDER", folder)
    first = fresh()
    assert first.list_workloads()
    first.close()
    [made] = cache.iterdir()
    written = made.stat().st_mtime_ns
    again = fresh()
    assert again.list_workloads() and [f.stat().st_mtime_ns for f in cache.iterdir()] == [written]
    again.close()
    document.write_text(
        '{"format": "sparsegen-tuning", "version": 1, "devices": [], "workloads": [], '
        '"measurements": [], "baselines": []}'
    )
    changed = fresh()
    assert changed.list_workloads() == []
    changed.close()
    [other] = cache.iterdir()
    assert other != made, "the file of the earlier state is gone"


def test_without_a_cache_to_write_they_are_read_all_the_same(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("no folder")
    reader = fresh()
    assert reader.list_workloads() and "read from JSON in every process" in caplog.text
    reader.close()


def test_a_file_beside_the_json_is_taken_as_it_is(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wheel has it."""
    seed_file.write(DOCUMENTS, tmp_path / seed_file.NAME)
    monkeypatch.setattr(seeds_reader, "FOLDER", tmp_path)
    reader = fresh()
    assert reader.list_workloads() and not cache.exists()
    reader.close()


def test_it_can_be_made_with_the_standard_library_alone(tmp_path: Path) -> None:
    """As the build of a wheel does."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import seed_file, pathlib; "
        "seed_file.write(map(pathlib.Path, sys.argv[3:]), pathlib.Path(sys.argv[2]))"
    )
    file = tmp_path / "seeds.db"
    command = [sys.executable, "-I", "-S", "-c", script, str(ROOT / "tuning_db"), str(file)]
    subprocess.run([*command, *map(str, DOCUMENTS)], check=True)
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT COUNT(*) FROM measurements").fetchone()[0] > 1000
    connection.close()
