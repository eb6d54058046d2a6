"""The store: measurements go in one by one and come out, for many threads and processes at once."""

from __future__ import annotations

import itertools
import logging
import random
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from sparsegen.errors import DatabaseCorruptError, DatabaseError, DatabaseNewerError, DatabaseReadOnlyError
from sparsegen.kernels.base import Device
from sparsegen.tuning_db import conversion, forgetting, migrations, schema_versions
from sparsegen.tuning_db.engine import (
    WRITES,
    copied_to_memory,
    create_engine,
    enter_wal_mode,
    has_answered,
    is_passing,
    pragma,
    set_foreign_keys,
    typed_errors,
)
from sparsegen.tuning_db.forgetting import Forgotten, Selection
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.models import (
    BaselineRow,
    CheckRow,
    DeviceRatesRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
    PredictionRow,
    ProbeRow,
    ProblemRow,
    VariantRow,
)
from sparsegen.tuning_db.reading import RecordsReader
from sparsegen.tuning_db.records import Baseline, Check, DeviceRates, Measurement, Prediction, Probe, Workload
from sparsegen.tuning_db.row_checks import Row

log = logging.getLogger(__name__)

SERVER_SECONDS = 120.0  # for a server that went away to come back
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between two attempts, in seconds

T = TypeVar("T")
Reference = DeviceRow | MatrixRow | ProblemRow | VariantRow
AnyRow = Reference | MeasurementRow | BaselineRow | DeviceRatesRow | ProbeRow | CheckRow | PredictionRow
Ids = dict[tuple[type[Reference], tuple[Any, ...]], int]


@dataclass(frozen=True, slots=True)
class Added:
    """How many rows an `add_all` added; the others were there already."""

    measurements: int
    baselines: int
    rates: int = 0
    predictions: int = 0


class Store(RecordsReader):
    """A tuning database. Every method may be called from any thread; many processes may hold the same file.

    ``generation`` counts the writes through this object, so that a cache above it knows when to look again.
    """

    def __init__(self, engine: sa.Engine, location: Location, *, read_only: bool) -> None:
        """Use `Store.open`."""
        super().__init__()
        self._engine = engine
        self._location = location
        self._copy: sqlite3.Connection | None = None  # of an older file, migrated in memory
        self._writes = itertools.count(1)
        self.read_only = read_only
        self.generation = 0
        self.found_schema: str | None = None  # the version before this object migrated it; None for a new one

    @classmethod
    def open(cls, location: str | Path, *, read_only: bool = False, lock_timeout: float = 30.0) -> Self:
        """Open a path or SQLAlchemy URL; a new database gets its folders and tables, an old one its
        migrations.

        Args:
            read_only: open what exists and change nothing, also on read-only media; an older SQLite file is read
                through a copy in memory, as it would be once migrated.
            lock_timeout: seconds to wait for another process.

        Raises:
            DatabaseCorruptError, DatabaseNewerError, DatabaseReadOnlyError, DatabaseLockedError,
            DatabaseFullError: see there; the file is left as it is.
            DatabaseError: a server that does not answer, a missing driver, no file to read.
        """
        place = Location.parse(location)
        engine = create_engine(place, read_only=read_only, lock_timeout=lock_timeout)
        store = cls(engine, place, read_only=read_only)
        try:
            store._persistently(lambda: store._make_ready(lock_timeout), has_answered)
        except (DatabaseCorruptError, DatabaseNewerError) as error:
            store.close()
            if str(place) in str(error):
                raise
            raise type(error)(f"{place}: {error}") from None
        except BaseException:
            store.close()
            raise
        return store

    def _make_ready(self, lock_timeout: float) -> None:
        with typed_errors(self._location):
            self._prepare(lock_timeout)

    def _prepare(self, lock_timeout: float) -> None:
        with self._engine.connect() as connection, connection.begin():
            revision = self.found_schema = migrations.current_revision(connection)
            is_published = sa.inspect(connection).has_table(schema_versions.PUBLISHED_TABLE)
        is_sqlite = self._engine.dialect.name == "sqlite"
        if is_published and not self.read_only:
            raise DatabaseReadOnlyError(
                f"{self.location} is a published layer, which is only read; name another database with --db, and this "
                "one in SPARSEGEN_LAYERS"
            )
        if self.read_only:
            if revision == schema_versions.HEAD:
                return
            if (revision is None) == is_sqlite:
                raise DatabaseError(
                    f"{self.location} has schema version {revision or 'none'} and is opened to be read; "
                    "run `sparsegen db migrate` where it can be written"
                )
            # An older file is read as it would be once migrated, and stays as it is for those that wrote it. A
            # server's database is there before anything was recorded: without tables it is read as an empty one.
            file = self._engine
            self._engine, self._copy = copied_to_memory(None if revision is None else file)
            file.dispose()
            self._migrate()
            return
        if is_sqlite:
            enter_wal_mode(self._engine, lock_timeout)
        if revision != schema_versions.HEAD:
            self._migrate()
        else:  # a file that cannot be written is refused now, not after the first measurement
            with self._writing():
                pass

    def _migrate(self) -> None:
        """Bring the schema up to date in one transaction; SQLite copies tables to change them, without foreign keys."""
        is_sqlite = self._engine.dialect.name == "sqlite"
        with self._engine.connect().execution_options(**{WRITES: True}) as connection:
            if is_sqlite:
                set_foreign_keys(connection, on=False)
            try:
                with connection.begin():
                    migrations.upgrade(connection)
            finally:
                if is_sqlite:
                    set_foreign_keys(connection, on=True)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if self.read_only:
            raise DatabaseReadOnlyError(f"{self.location} was opened for reading only")
        with (
            typed_errors(self._location),
            self._engine.connect().execution_options(**{WRITES: True}) as connection,
            connection.begin(),
        ):
            yield connection

    @property
    def location(self) -> str:
        """The path, or the URL without its password: for people."""
        return str(self._location)

    def close(self) -> None:
        self._engine.dispose()
        if self._copy is not None:
            self._copy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- writing -------------------------------------------------------------------------------------------

    def add_measurement(self, m: Measurement) -> None:
        """Record a measurement; it is committed when this returns."""
        self.add_all([m], [])

    def add_baseline(self, b: Baseline) -> None:
        """Record a baseline; it is committed when this returns."""
        self.add_all([], [b])

    def add_rates(self, rates: DeviceRates) -> None:
        """Record what a device does; it is committed when this returns."""
        self.add_all([], [], [rates])

    def add_prediction(self, p: Prediction) -> None:
        """Record a predicted time; it is committed when this returns."""
        self.add_all([], [], predictions=[p])

    def add_probe(self, probe: Probe) -> None:
        """Record what was timed where it was used; it is committed when this returns."""
        self._add_observed(ProbeRow, probe, conversion.probe_columns(probe))

    def add_check(self, check: Check) -> None:
        """Record whether a variant was right where it was used; it is committed when this returns."""
        self._add_observed(CheckRow, check, conversion.check_columns(check))

    def _add_observed(
        self, row: type[ProbeRow | CheckRow], record: Probe | Check, columns: dict[str, Any]
    ) -> None:
        with self._writing() as connection:
            ids: Ids = {}
            columns = columns | _workload_ids(connection, record.workload, record.device, ids)
            variant = conversion.variant_columns(record.variant)
            columns["variant_id"] = _id_of(connection, VariantRow, variant, ids)
            _insert_new(connection, row, columns)
        self.generation = next(self._writes)

    def add_all(
        self,
        measurements: Iterable[Measurement],
        baselines: Iterable[Baseline],
        rates: Iterable[DeviceRates] = (),
        predictions: Iterable[Prediction] = (),
    ) -> Added:
        """Record all of them, or on any error none; what is there already is left alone."""
        records = list(measurements), list(baselines), list(rates), list(predictions)
        added = self._persistently(lambda: self._add(*records))
        self.generation = next(self._writes)
        return added

    def _add(
        self,
        measurements: list[Measurement],
        baselines: list[Baseline],
        rates: list[DeviceRates],
        predictions: list[Prediction],
    ) -> Added:
        """In one transaction; another one that follows it, of which nobody knows the end, adds nothing twice."""
        with self._writing() as connection:
            ids: Ids = {}
            return Added(
                sum(_add_measurement(connection, m, ids) for m in measurements),
                sum(_add_baseline(connection, b, ids) for b in baselines),
                sum(_add_rates(connection, r, ids) for r in rates),
                sum(_add_prediction(connection, p, ids) for p in predictions),
            )

    def forget(self, selection: Selection) -> Forgotten:
        """Delete what is selected; it is committed when this returns."""

        def forget() -> Forgotten:
            with self._writing() as connection:
                return forgetting.forget(connection, selection)

        forgotten = self._persistently(forget)
        self.generation = next(self._writes)
        return forgotten

    def count(self, selection: Selection) -> Forgotten:
        """How much `forget` would delete."""

        def count() -> Forgotten:
            with typed_errors(self._location), self._engine.connect() as connection:
                return forgetting.count(connection, selection)

        return self._persistently(count)

    def _rows(self, query: str, parameters: Mapping[str, Any]) -> list[Row]:
        def read() -> list[Row]:
            with typed_errors(self._location), self._engine.connect() as connection:
                return list(connection.execute(sa.text(query), parameters).mappings())

        return self._persistently(read)

    def _persistently(
        self, work: Callable[[], T], is_passing: Callable[[DatabaseError], bool] = is_passing
    ) -> T:
        """What a transaction gives; it is tried anew while its server restarts or has too many connections.

        Args:
            is_passing: says after which errors.

        Raises:
            DatabaseUnavailableError: the server was away for `SERVER_SECONDS`.
            DatabaseError: what else the transaction raises.
        """
        deadline, pause = None, FIRST_PAUSE
        while True:
            try:
                return work()
            except DatabaseError as error:
                if self._location.path is not None or not is_passing(error):
                    raise
                now = time.monotonic()
                if deadline is None:
                    deadline = now + SERVER_SECONDS
                    log.info("%s; trying again for up to %.0f s", error, SERVER_SECONDS)
                elif now >= deadline:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # many wait for the same server
            pause = min(2 * pause, LONGEST_PAUSE)

    # --- upkeep --------------------------------------------------------------------------------------------

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its file: damaged pages, references to nothing."""
        if self._engine.dialect.name != "sqlite":
            return []
        try:
            with typed_errors(self._location):
                pages = [str(line) for (line,) in pragma(self._engine, "integrity_check")]
                dangling = pragma(self._engine, "foreign_key_check")
        except DatabaseCorruptError as error:  # so damaged that the check itself stops
            return [str(error)]
        lost = [f"{table} row {row}: no such row of {parent}" for table, row, parent, _ in dangling]
        return [line for line in pages if line != "ok"] + lost


def _add_measurement(connection: sa.Connection, m: Measurement, ids: Ids) -> bool:
    if (m.sample is not None) != (m.outcome == "ok"):
        raise ValueError(f"a measurement has a sample exactly when its outcome is ok, not {m.outcome}")
    columns = conversion.measurement_columns(m) | _workload_ids(connection, m.workload, m.device, ids)
    columns["variant_id"] = _id_of(connection, VariantRow, conversion.variant_columns(m.variant), ids)
    return _insert_new(connection, MeasurementRow, columns)


def _add_baseline(connection: sa.Connection, b: Baseline, ids: Ids) -> bool:
    columns = conversion.baseline_columns(b) | _workload_ids(connection, b.workload, b.device, ids)
    return _insert_new(connection, BaselineRow, columns)


def _add_prediction(connection: sa.Connection, p: Prediction, ids: Ids) -> bool:
    columns = conversion.prediction_columns(p) | _workload_ids(connection, p.workload, p.device, ids)
    columns["variant_id"] = _id_of(connection, VariantRow, conversion.variant_columns(p.variant), ids)
    return _insert_new(connection, PredictionRow, columns)


def _add_rates(connection: sa.Connection, r: DeviceRates, ids: Ids) -> bool:
    columns = conversion.rates_columns(r)
    columns["device_id"] = _id_of(connection, DeviceRow, conversion.device_columns(r.device), ids)
    return _insert_new(connection, DeviceRatesRow, columns)


def _workload_ids(connection: sa.Connection, workload: Workload, device: Device, ids: Ids) -> dict[str, int]:
    return {
        "device_id": _id_of(connection, DeviceRow, conversion.device_columns(device), ids),
        "matrix_id": _id_of(connection, MatrixRow, conversion.matrix_columns(workload), ids),
        "problem_id": _id_of(connection, ProblemRow, conversion.problem_columns(workload.problem), ids),
    }


@dataclass(frozen=True, slots=True)
class _Statements:
    """A table's statements, with parameters: built once, SQLAlchemy finds what it compiled of them before.

    Attributes:
        key: the columns of the table's unique constraint.
        find: the id of the row with this key.
        insert: a row of all columns.
    """

    key: tuple[str, ...]
    find: sa.Select[int]
    insert: sa.Insert


@cache
def _statements(row: type[AnyRow]) -> _Statements:
    table = row.__table__
    assert isinstance(table, sa.Table)
    unique = next(c for c in table.constraints if isinstance(c, sa.UniqueConstraint))
    key = tuple(column.name for column in unique.columns)
    find = sa.select(table.c.id).where(*(table.c[name] == sa.bindparam(name) for name in key))
    return _Statements(key, find, sa.insert(table))


def _id_of(connection: sa.Connection, row: type[Reference], columns: dict[str, Any], ids: Ids) -> int:
    """The id of the row with these columns, inserted when it is not there."""
    statements = _statements(row)
    key = {name: columns[name] for name in statements.key}
    cached = (row, tuple(key.values()))
    if cached not in ids:
        found = connection.scalar(statements.find, key)
        if found is None:
            _insert_new(connection, row, columns)
            found = connection.scalar(statements.find, key)
        assert found is not None, "it was inserted here or by another process"
        ids[cached] = found
    return ids[cached]


def _insert_new(connection: sa.Connection, row: type[AnyRow], columns: dict[str, Any]) -> bool:
    """Insert, unless a row with the same natural key is there."""
    statements = _statements(row)
    key = {name: columns[name] for name in statements.key}
    if connection.scalar(statements.find, key) is not None:
        return False
    if connection.dialect.name == "sqlite":  # nobody else writes meanwhile: see `engine.WRITES`
        connection.execute(statements.insert, columns)
        return True
    try:
        with connection.begin_nested():
            connection.execute(statements.insert, columns)
    except sa.exc.IntegrityError:
        if connection.scalar(statements.find, key) is None:
            raise  # another constraint: not a repeat
        return False  # another process was faster
    return True
