"""Makes the SQLite file that dispatch reads out of the reviewed JSON of the packaged tuning results.

Python's standard library alone, and no import of this package: ``setup.py`` runs it to put the file into a wheel, where
nothing else is installed. In a source tree `seeds_reader` runs it once into the cache. The values are taken as they
stand, since the JSON is part of the source; a test holds what is read from the file against what the strict reader of
exports makes of the JSON, and these tables against the models.

The JSON is an export in columns (`seed_columns` turns one into the other), one row a line::

    {"format": "sparsegen-seeds/3", "version": 3,
    "devices": [{"key": ..., "rates": {...}}],
    "patterns": {"HJ5R": ["ecd7eb75...", 4096, 1024, 1258824, ...], ...},
    "tunables": {"csr_spmm": ["tile_n", ...], ...},
    "variants": {"csr_spmm": {"egu8": [32, ..., "80a22737"], ...}, ...},
    "conditions": {"P2": {"outcome": "ok", "final": true, "count": 100, "driver": "580.159.04", ...}, ...},
    "results": [{"problem": {...}, "pattern": "HJ5R", "device": 0, "from": "2026-11-21T10:57:06+00:00",
    "measurements": [["egu8", "P2", 13.79, ...], ...], "baselines": [["gb", ...], ...]}, ...]}

Patterns, variants and conditions (what many records have in common) are named by their own contents, so that a new row
changes no other line. A row has the values of `MEASUREMENT` or `BASELINE`, in this order, without those at its end that
are null; percentiles are whole nanoseconds below and above the median, and ``after`` is the seconds from the group's
``from`` to when it was measured.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Document = dict[str, Any]

SCHEMA_VERSION = "0009"  # version in `schema_versions` that has these tables
NAME = "seeds.db"  # beside the JSON files, in a wheel

FORMAT = "sparsegen-seeds/3"
TIMES = ("median_us", "below_ns", "above_ns")
MEASUREMENT = (
    "variant", "conditions", *TIMES, "after", "worst_error", "registers", "spill_bytes", "packed_bytes",
    "compile_seconds", "prepare_seconds",
)  # fmt: skip
BASELINE = ("conditions", *TIMES, "after")
PATTERN = ("m", "k", "nnz", "row_mean", "row_cov", "row_max", "block_fill")

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
    "probes": f"{_OBSERVED}, sparse_us REAL, dense_us REAL, sample_count INTEGER, measured_as TEXT, "
    "called TEXT, task TEXT, context TEXT",
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


def read(file: Path) -> Document:
    """The document of a JSON file."""
    return dict(json.loads(file.read_text(encoding="utf-8")))


def fill(connection: sqlite3.Connection, documents: Iterable[Document]) -> None:
    """Make the tables in an empty database and put the records of all documents into them.

    Raises:
        ValueError, KeyError: a document is not what `seed_columns.pack` makes.
    """
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
        fill(connection, map(read, documents))
    finally:
        connection.close()


class _Writer:
    """Adds documents, whose devices, patterns and variants may overlap."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[tuple[Any, ...], int] = {}

    def add(self, document: Document) -> None:
        if document["format"] != FORMAT:
            raise ValueError(f"packaged results are {FORMAT}, not {document['format']}")
        devices = [self._device(device) for device in document["devices"]]
        patterns = {name: self._pattern(row) for name, row in document["patterns"].items()}
        tunables = document["tunables"]
        variants = {
            name: self._variant(family, row, tunables[family])
            for family, rows in document["variants"].items()
            for name, row in rows.items()
        }
        conditions = document["conditions"]
        for group in document["results"]:
            place = {
                "device_id": devices[group["device"]],
                "matrix_id": patterns[group["pattern"]],
                "problem_id": self._problem(group["problem"]),
            }
            start = datetime.fromisoformat(group["from"]).astimezone(UTC).replace(tzinfo=None)
            measured = [_members(MEASUREMENT, row, conditions, start) for row in group["measurements"]]
            for m in measured:
                m["variant_id"] = variants[m.pop("variant")]
                m |= {name: m.get(name) or "" for name in ("reason", "driver")}
            self._insert_all("measurements", place, measured)
            compared = [_members(BASELINE, row, conditions, start) for row in group["baselines"]]
            self._insert_all("baselines", place, compared)

    def _device(self, device: Document) -> int:
        columns = dict(device)
        rates = columns.pop("rates", None)
        major, minor = columns.pop("compute_capability")
        columns |= {"compute_capability_major": major, "compute_capability_minor": minor}
        number = self._id_of("devices", (device["key"],), columns)
        if rates is not None:
            moment = datetime.fromisoformat(rates["measured_at"]).astimezone(UTC).replace(tzinfo=None)
            self._insert("device_rates", {**rates, "measured_at": _text(moment), "device_id": number})
        return number

    def _pattern(self, row: Sequence[object]) -> int:
        fingerprint, *values = row
        features = dict(zip(PATTERN, values, strict=True))
        return self._id_of("matrices", (fingerprint,), {"fingerprint": fingerprint, **features})

    def _problem(self, problem: Mapping[str, object]) -> int:
        fields = dict(problem)
        operator = fields.pop("operator")
        text = _canonical(fields)
        digest = hashlib.sha256(f"{operator} {text}".encode()).hexdigest()
        return self._id_of("problems", (digest,), {"operator": operator, "fields": text, "digest": digest})

    def _variant(self, family: str, row: Sequence[object], tunables: Sequence[str]) -> int:
        *values, digest = row
        config = _canonical(dict(zip(tunables, values, strict=True)))
        columns = {"family": family, "config": config, "source_digest": digest}
        return self._id_of("variants", tuple(columns.values()), columns)

    def _id_of(self, table: str, key: tuple[object, ...], columns: Mapping[str, object]) -> int:
        found = self._ids.get((table, *key))
        if found is None:
            found = self._ids[table, *key] = self._insert(table, columns)
        return found

    def _insert(self, table: str, columns: Mapping[str, object]) -> int:
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        cursor = self._connection.execute(
            f"INSERT INTO {table} ({names}) VALUES ({places})", tuple(columns.values())
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _insert_all(self, table: str, place: Mapping[str, int], rows: Iterable[Document]) -> None:
        for row in rows:
            self._insert(table, {**place, **row})


def values_of(columns: Sequence[str], row: Sequence[Any], conditions: Mapping[str, Document]) -> Document:
    """The values of a row by name, with its conditions and its percentiles in microseconds."""
    values = dict(zip(columns, row, strict=False))
    values |= conditions[values.pop("conditions")]
    below, above = values.pop("below_ns", None), values.pop("above_ns", None)
    if below is not None and above is not None:
        median = values["median_us"]
        values |= {"low_us": round(median - below / 1000, 3), "high_us": round(median + above / 1000, 3)}
    return values


def _members(
    columns: Sequence[str], row: Sequence[Any], conditions: Mapping[str, Document], start: datetime
) -> Document:
    """The columns of a table's row, but for what it refers to."""
    members = values_of(columns, row, conditions)
    cold, kind = members.pop("cold", True), members.pop("measured_as", None)
    members["measured_as"] = kind or ("warm" if cold is False else "cold")
    members["sample_count"] = members.pop("count", None)
    members["measured_at"] = _text(start + timedelta(seconds=members.pop("after")))
    return members


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def _canonical(values: Mapping[str, object]) -> str:
    """JSON as `conversion.canonical` writes it."""
    return _ENCODER.encode(values)


def _text(moment: datetime) -> str:
    """A moment of UTC as SQLAlchemy keeps it in SQLite."""
    return moment.isoformat(sep=" ", timespec="microseconds")
