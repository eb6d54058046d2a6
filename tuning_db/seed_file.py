"""Makes the SQLite file that dispatch reads out of the reviewed JSON of the packaged tuning results.

Python's standard library alone, and no import of this package: ``setup.py`` runs it to put the file into a wheel, where
nothing else is installed. In a source tree `seeds_reader` runs it once into the cache. The values are taken as they
stand, since the JSON is part of the source; a test holds what is read from the file against what the strict reader of
exports makes of the JSON, and these tables against the models.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SCHEMA_VERSION = "0006"  # of `schema_versions`, that these tables are of
NAME = "seeds.db"  # beside the JSON files, in a wheel

_TIMED = "id INTEGER PRIMARY KEY, device_id INTEGER, matrix_id INTEGER, problem_id INTEGER, measured_at TEXT"
_SAMPLE = (
    "median_us REAL, low_us REAL, high_us REAL, sample_count INTEGER, measured_as TEXT, clock_mhz INTEGER"
)
_OBSERVED = f"{_TIMED}, variant_id INTEGER, driver TEXT"
_RATES = (
    "copy_bytes_per_us REAL, float32_flop_per_us REAL, tf32_flop_per_us REAL, float16_flop_per_us REAL, "
    "bfloat16_flop_per_us REAL, launch_us REAL, clock_mhz REAL"
)
TABLES = {
    "devices": "id INTEGER PRIMARY KEY, key TEXT UNIQUE, name TEXT, backend TEXT, compute_capability_major INTEGER, "
    "compute_capability_minor INTEGER, multiprocessors INTEGER, shared_memory_per_block INTEGER, "
    "shared_memory_per_multiprocessor INTEGER, l2_bytes INTEGER",
    "device_rates": f"id INTEGER PRIMARY KEY, device_id INTEGER, measured_at TEXT, {_RATES}",
    "matrices": "id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE, m INTEGER, k INTEGER, nnz INTEGER, row_mean REAL, "
    "row_cov REAL, row_max INTEGER, block_fill REAL",
    "problems": "id INTEGER PRIMARY KEY, operator TEXT, fields TEXT, digest TEXT UNIQUE",
    "variants": "id INTEGER PRIMARY KEY, family TEXT, config TEXT, source_digest TEXT, "
    "UNIQUE (family, source_digest, config)",
    "measurements": f"{_TIMED}, {_SAMPLE}, throttle_reasons INTEGER, variant_id INTEGER, outcome TEXT, reason TEXT, "
    "worst_error REAL, registers INTEGER, spill_bytes INTEGER, compile_seconds REAL, prepare_seconds REAL, "
    "packed_bytes INTEGER, final BOOLEAN, driver TEXT",
    "baselines": f"{_TIMED}, {_SAMPLE}, throttle_reasons INTEGER, contender TEXT, version TEXT",
    "probes": f"{_OBSERVED}, sparse_us REAL, dense_us REAL, sample_count INTEGER, measured_as TEXT",
    "checks": f"{_OBSERVED}, outcome TEXT, reason TEXT, worst_error REAL, seconds REAL",
    "predictions": "id INTEGER PRIMARY KEY, device_id INTEGER, matrix_id INTEGER, problem_id INTEGER, "
    "variant_id INTEGER, predicted_us REAL, basis TEXT, model TEXT, registers INTEGER, spill_bytes INTEGER, "
    "predicted_at TEXT",  # empty: what is packaged was measured
    "sparsegen_version": "version_num TEXT",
}
INDEXES = {  # listing what was tuned reads the first one alone
    "measurements": "problem_id, matrix_id, device_id, outcome, measured_at",
    "baselines": "problem_id, matrix_id, device_id",
}


def seed_documents(folder: Path) -> list[Path]:
    """The JSON files of a folder, in a fixed order."""
    return sorted(folder.glob("*.json"))


def fill(connection: sqlite3.Connection, documents: Iterable[Path]) -> None:
    """Make the tables in an empty database and put the records of all documents into them, files of JSON.

    Raises:
        ValueError, KeyError: a document is not what `exchange.dump` writes.
    """
    fill_with(connection, (json.loads(document.read_text(encoding="utf-8")) for document in documents))


def fill_with(connection: sqlite3.Connection, documents: Iterable[Mapping[str, Any]]) -> None:
    """`fill` with documents that are read already."""
    with connection:
        connection.execute("BEGIN")
        for table, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
        connection.execute("INSERT INTO sparsegen_version VALUES (?)", (SCHEMA_VERSION,))
        writer = _Writer(connection)
        for document in documents:
            writer.add(document)
        for table, columns in INDEXES.items():
            connection.execute(f"CREATE INDEX ix_{table} ON {table} ({columns})")


def write(documents: Iterable[Path], file: Path) -> None:
    """A new SQLite file of the documents' records; the file must not be there."""
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        fill(connection, documents)
    finally:
        connection.close()


class _Writer:
    """Adds documents, whose lists of devices and workloads may overlap."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[tuple[Any, ...], int] = {}

    def add(self, document: Mapping[str, Any]) -> None:
        devices = [self._device(device) for device in document["devices"]]
        workloads = [self._workload(workload) for workload in document["workloads"]]
        for m in document["measurements"]:
            self._insert("measurements", self._measurement(m, devices, workloads))
        for b in document["baselines"]:
            own = {"contender": b["contender"], "version": b["version"]}
            self._insert("baselines", self._timed(b, devices, workloads) | own)

    def _device(self, device: Mapping[str, Any]) -> int:
        columns = dict(device)
        rates = columns.pop("rates", None)
        major, minor = columns.pop("compute_capability")
        columns |= {"compute_capability_major": major, "compute_capability_minor": minor}
        number = self._id_of("devices", (device["key"],), columns)
        if rates is not None:
            moment = {"measured_at": _moment(rates["measured_at"]), "device_id": number}
            self._insert("device_rates", {**rates, **moment})
        return number

    def _workload(self, workload: Mapping[str, Any]) -> tuple[int, int]:
        """The numbers of its matrix and its problem."""
        fingerprint = workload["fingerprint"]
        matrix = {"fingerprint": fingerprint, **workload["features"]}
        fields = dict(workload["problem"])
        operator = fields.pop("operator")
        text = _canonical(fields)
        digest = hashlib.sha256(f"{operator} {text}".encode()).hexdigest()
        problem = {"operator": operator, "fields": text, "digest": digest}
        return self._id_of("matrices", (fingerprint,), matrix), self._id_of("problems", (digest,), problem)

    def _measurement(
        self, m: Mapping[str, Any], devices: list[int], workloads: list[tuple[int, int]]
    ) -> dict[str, Any]:
        variant = {
            "family": m["family"],
            "config": _canonical(m["config"]),
            "source_digest": m["source_digest"],
        }
        refused = {"workload", "device", "sample", *variant}
        return {
            "reason": "",
            "driver": "",
            **{name: value for name, value in m.items() if name not in refused},
            **self._timed(m, devices, workloads),
            "variant_id": self._id_of("variants", tuple(variant.values()), variant),
        }

    @staticmethod
    def _timed(
        record: Mapping[str, Any], devices: list[int], workloads: list[tuple[int, int]]
    ) -> dict[str, Any]:
        matrix, problem = workloads[record["workload"]]
        sample = dict(record.get("sample", {}))
        kind = "cold" if sample.pop("cold", True) else "warm"
        sample["measured_as"] = sample.get("measured_as", kind)
        if "count" in sample:
            sample["sample_count"] = sample.pop("count")
        return {
            "device_id": devices[record["device"]],
            "matrix_id": matrix,
            "problem_id": problem,
            "measured_at": _moment(record["measured_at"]),
            **sample,
        }

    def _id_of(self, table: str, key: tuple[Any, ...], columns: Mapping[str, Any]) -> int:
        found = self._ids.get((table, *key))
        if found is None:
            found = self._ids[table, *key] = self._insert(table, columns)
        return found

    def _insert(self, table: str, columns: Mapping[str, Any]) -> int:
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        cursor = self._connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({places})", tuple(columns.values())
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid


def _canonical(values: Mapping[str, Any]) -> str:
    """JSON as `conversion.canonical` writes it."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":"))


def _moment(text: str) -> str:
    """A moment as SQLAlchemy keeps it in SQLite: in UTC, without saying so."""
    moment = datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(sep=" ", timespec="microseconds")
