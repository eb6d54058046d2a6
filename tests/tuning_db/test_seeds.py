"""The packaged results: JSON in columns, and the SQLite file that holds what it says, however it comes to be."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from tuning_samples import H100, MEASURED_RATES, START, baseline, failed, timed

from benchmarks import seed_documents
from sparsegen.tuning_db import schema_versions, seed_columns, seed_file, seeds_reader
from sparsegen.tuning_db.exchange import Content, document, dump, load
from sparsegen.tuning_db.models import Base
from sparsegen.tuning_db.records import DeviceRates, MeasuredAs, Outcome, Sample
from sparsegen.tuning_db.seeds_reader import packaged
from sparsegen.tuning_db.sqlite_reader import SqliteReader, open_sqlite
from sparsegen.tuning_db.store import Store

ROOT = Path(__file__).parents[2]
DOCUMENTS = seed_file.seed_documents(seeds_reader.FOLDER)


def packed_text(content: Content) -> str:
    """The records as packaged JSON."""
    return seed_documents.text_of(seed_columns.pack(document(content)))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a way of its own to the seeds."""
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "seeds"


def fresh() -> SqliteReader:
    """The packaged results through a connection of its own."""
    return packaged.__wrapped__()


def test_the_file_holds_what_the_strict_reader_makes_of_the_json(cache: Path) -> None:
    documents = [
        load(json.dumps(seed_documents.unpack(seed_file.read(file))), file.name) for file in DOCUMENTS
    ]
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
    """Today's seeds have none of these."""
    measured = (timed(3.0), failed(Outcome.CRASHED, "boom", at=1))
    content = Content(measured, (baseline(4.0),), (DeviceRates(H100, MEASURED_RATES, START),))
    document = tmp_path / "some.json"
    document.write_text(packed_text(content))
    seed_file.write([document], tmp_path / "some.db")
    reader = open_sqlite(tmp_path / "some.db")
    assert reader is not None
    assert reader.all_measurements() == list(content.measurements)
    assert reader.all_baselines() == list(content.baselines)
    assert reader.all_rates() == list(content.rates)
    reader.close()


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda f: f.stem)
def test_the_committed_text_is_what_is_written(file: Path) -> None:
    """Equal results make equal text, so that a diff shows what was measured and nothing else."""
    document = seed_documents.unpack(seed_file.read(file))
    assert seed_documents.text_of(seed_columns.pack(document)) == file.read_text(encoding="utf-8")


def samples() -> Content:
    """Records of all kinds: two variants, failures, baselines, drivers, other L2 states and rates."""
    warm = replace(timed(2.0, at=2, measured_as=MeasuredAs.WARM), driver="580.1")
    graph = replace(timed(2.5, at=3, threads_per_row=16), sample=Sample(2.5, 2.4, 2.6, 9, MeasuredAs.GRAPH))
    measured = (timed(3.0), failed(Outcome.CRASHED, "boom", at=1), warm, graph)
    return Content(measured, (baseline(4.0),), (DeviceRates(H100, MEASURED_RATES, START),))


def test_columns_hold_a_whole_export() -> None:
    document = json.loads(dump(samples()))
    packed = seed_columns.pack(document)
    assert document == json.loads(dump(samples())), "what is packed stays as it was"
    assert json.loads(seed_documents.text_of(packed)) == packed
    assert load(json.dumps(seed_documents.unpack(packed)), "unpacked") == samples()


def test_a_new_row_changes_no_other_line() -> None:
    before, more = samples(), timed(1.0, at=5, threads_per_row=4)
    lines = [
        packed_text(content).splitlines()
        for content in (before, replace(before, measurements=(*before.measurements, more)))
    ]
    assert len(lines[1]) == len(lines[0]) + 2, "its variant and its row"
    assert (
        len({line.removesuffix(",") for line in lines[0]} - {line.removesuffix(",") for line in lines[1]})
        == 0
    )


def test_names_grow_until_they_tell_rows_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_columns, "SHORT", 0)
    more = tuple(timed(1.0, at=i, threads_per_row=threads) for i, threads in enumerate((4, 8, 16)))
    packed = seed_columns.pack(json.loads(dump(Content(more, ()))))
    assert sum(map(len, packed["variants"].values())) == 3
    assert load(json.dumps(seed_documents.unpack(packed)), "unpacked").measurements == more


def test_predictions_are_not_packaged() -> None:
    with pytest.raises(ValueError, match="predictions cannot be packed"):
        seed_columns.pack(json.loads(dump(samples())) | {"predictions": [{}]})


def test_other_documents_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    file.write_text(dump(samples()))
    with pytest.raises(ValueError, match="packaged results are sparsegen-seeds/3, not sparsegen-tuning"):
        seed_file.write([file], tmp_path / "some.db")
    with pytest.raises(ValueError, match="not sparsegen-tuning"):
        seed_documents.unpack(json.loads(dump(samples())))


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
    document.write_text(packed_text(Content((), ())))
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
    """A wheel has such a file."""
    seed_file.write(DOCUMENTS, tmp_path / seed_file.NAME)
    monkeypatch.setattr(seeds_reader, "FOLDER", tmp_path)
    reader = fresh()
    assert reader.list_workloads() and not cache.exists()
    reader.close()


def test_it_can_be_made_with_the_standard_library_alone(tmp_path: Path) -> None:
    """The build of a wheel does so."""
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
