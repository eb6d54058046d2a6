"""Readers of exports, result files, pins and databases, whatever a file holds."""

from __future__ import annotations

import json
import secrets
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from bench_samples import results
from fuzz_mutations import damaged_bytes, damaged_json
from fuzz_report import Fuzz
from tuning_samples import H100, MEASURED_RATES, baseline, failed, timed, workload

from sparsegen import backends
from sparsegen.bench.results import result_file, result_reader
from sparsegen.bench.results.results import Results
from sparsegen.dispatch.choice import choose, forget
from sparsegen.errors import DatabaseError, ImportFileError, PinsError, ResultsError
from sparsegen.tuning_db import exchange
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.foreign_devices import facts as facts_of
from sparsegen.tuning_db.pins import Pin, Pins
from sparsegen.tuning_db.pins_file import read_pins, write_pins
from sparsegen.tuning_db.records import DeviceRates, Outcome
from sparsegen.tuning_db.store import Store

RECORDS = exchange.Content(
    (
        timed(12.5, tile_n=32, final=True),
        timed(3.0, workload(n=128, tag="b")),
        failed(Outcome.WRONG, tile_n=128),
    ),
    (baseline(20.0),),
    (DeviceRates(H100, MEASURED_RATES),),
)


def test_exports(tmp_path: Path, fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        try:
            content = exchange.load(text, "x.json")
        except ImportFileError as error:
            assert str(error).startswith("x.json") and len(str(error)) < 1000
            return
        assert exchange.load(exchange.dump(content), "again") == content
        with Store.open(tmp_path / f"{secrets.token_hex(8)}.db") as store:
            exchange.import_json(store, text, "x.json")
            assert not check(store)

    fuzz(damaged_json(json.loads(exchange.dump(RECORDS))), read)


def test_result_files(fuzz: Fuzz) -> None:
    def read(text: str) -> None:
        try:
            found = result_reader.load(text, "x.json")
        except ResultsError as error:
            assert "x.json" in str(error) and len(str(error)) < 2000
            return
        assert isinstance(found, Results)
        assert result_reader.load(result_file.dump(found), "again") == found

    fuzz(damaged_json(json.loads(result_file.dump(results()))), read)


def test_pins(tmp_path: Path, fuzz: Fuzz) -> None:
    path = tmp_path / "pins.json"
    here = workload()
    pin = Pin(here.problem, here.fingerprint, H100.key, timed(1.0, tile_n=32).variant.config, "reviewed")
    write_pins(Pins().with_pins([pin, replace(pin, device="another")]), path)

    def read(text: str) -> None:
        path.write_text(text, errors="surrogateescape")
        try:
            found = read_pins(path)
        except PinsError as error:
            assert str(path) in str(error) and len(str(error)) < 2000
            return
        write_pins(found, path)
        assert {*read_pins(path)} == {*found}

    fuzz(damaged_json(json.loads(path.read_text())), read)


def test_exports_with_foreign_devices(tmp_path: Path, fuzz: Fuzz) -> None:
    """An export may say anything of its devices: it records nothing for a known one that is another."""
    emulator = backends.emulator_device()
    known = Content((timed(12.5, tile_n=32), timed(50.0, device=emulator, tile_n=64)), ())
    foreign = json.loads(exchange.dump(Content((timed(0.5, tile_n=128), timed(0.25, device=emulator)), ())))
    facts = {facts_of(device)["key"]: facts_of(device) for device in (H100, emulator)}

    def read(found: tuple[str, str, Any, bool]) -> None:
        text, name, value, is_second = found
        document = json.loads(text)
        with suppress(TypeError, KeyError, IndexError):
            document["devices"][is_second][name] = value
        place = tmp_path / f"{secrets.token_hex(8)}.db"
        with Store.open(place) as store:
            store.add_all(known.measurements, [])
            with suppress(ImportFileError):
                exchange.import_json(store, json.dumps(document), "x.json")
            for m in store.all_measurements():
                assert (m.device.key == "emulator") == (m.device.backend == "emulator")
                assert facts_of(m.device) == facts.get(m.device.key, facts_of(m.device))
            assert not check(store)
        place.unlink()

    names = st.sampled_from(("key", "name", "backend", "compute_capability", "multiprocessors", "l2_bytes"))
    values = st.sampled_from(
        (
            H100.key,
            H100.name,
            emulator.key,
            emulator.name,
            "cuda",
            "emulator",
            [9, 0],
            [8, 0],
            1,
            132,
            "x",
            None,
        )
    )
    documents = st.just(json.dumps(foreign)) | damaged_json(foreign)
    fuzz(st.tuples(documents, names, values, st.booleans()), read)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "tuning.db"
    with Store.open(path) as store:
        store.add_all(RECORDS.measurements, RECORDS.baselines, RECORDS.rates)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


def look_up(path: Path, *, read_only: bool) -> None:
    """All that commands ask a database."""
    known = workload()
    try:
        with Store.open(path, read_only=read_only) as store:
            for tuned in store.list_workloads():
                store.winner(tuned.workload, tuned.device)
                store.baselines(tuned.workload, tuned.device)
            store.rates(H100)
            choose(known, H100, store)
            forget(store)
            exchange.load(exchange.export_json(store)[0], "export")
            check(store)
    except DatabaseError as error:
        assert str(path) in str(error)


def test_damaged_databases(tmp_path: Path, database: bytes, fuzz: Fuzz) -> None:
    def read(found: tuple[tuple[str, bytes], bool]) -> None:
        (name, content), read_only = found
        path = tmp_path / name
        for rest in tmp_path.iterdir():
            rest.unlink()
        path.write_bytes(content)
        look_up(path, read_only=read_only)

    fuzz(st.tuples(damaged_bytes({"tuning.db": database}), st.booleans()), read)


def test_rows_of_databases(tmp_path: Path, database: bytes, fuzz: Fuzz) -> None:
    path = tmp_path / "tuning.db"
    path.write_bytes(database)
    with closing(sqlite3.connect(path)) as connection:
        tables = (
            "devices",
            "device_rates",
            "matrices",
            "problems",
            "variants",
            "measurements",
            "baselines",
            "predictions",
        )
        columns = [(t, name) for t in tables for _, name, *_ in connection.execute(f"PRAGMA table_info({t})")]
    values = (
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(max_size=20) | st.text(max_size=20)
        | st.sampled_from(("{}", "[]", "[1]", "{\"self\":1}", "[" * 3000, "ok", "wrong", "2026-11-22 00:00:00.000000"))
    )  # fmt: skip

    def read(changes: list[tuple[tuple[str, str], Any]]) -> None:
        path.write_bytes(database)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = 1")
            for (table, column), value in changes:
                try:
                    connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE id = 1", (value,))
                except (sqlite3.Error, UnicodeEncodeError):
                    continue  # an id that is no number, text that is none
        look_up(path, read_only=True)

    fuzz(st.lists(st.tuples(st.sampled_from(columns), values), min_size=1, max_size=3), read)
