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
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import sqlalchemy as sa

from sparsegen.errors import (
    DatabaseCorruptError,
    DatabaseError,
    DatabaseNewerError,
    DatabaseOlderError,
    DatabaseReadOnlyError,
)
from sparsegen.tuning_db import forgetting, migrations, schema_versions
from sparsegen.tuning_db.engine import (
    WRITES,
    copied_to_memory,
    create_engine,
    empty_log,
    enter_wal_mode,
    has_answered,
    is_passing,
    pragma,
    set_foreign_keys,
    typed_errors,
)
from sparsegen.tuning_db.forgetting import Forgotten, Selection
from sparsegen.tuning_db.inserting import Insertion
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.reading import RecordsReader
from sparsegen.tuning_db.records import Baseline, Check, DeviceRates, Measurement, Prediction, Probe
from sparsegen.tuning_db.row_checks import Row

log = logging.getLogger(__name__)

SERVER_SECONDS = 120.0  # time for a server that went away to come back
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between two attempts, in seconds

T = TypeVar("T")


def persistently(
    location: Location, work: Callable[[], T], is_passing: Callable[[DatabaseError], bool] = is_passing
) -> T:
    """Runs a transaction and returns its result; tries again after passing errors, except on a file.

    Args:
        location: the database's location.
        is_passing: says after which errors another attempt is made.

    Raises:
        DatabaseUnavailableError: the server was away for `SERVER_SECONDS`.
        DatabaseError: any other error of the transaction.
    """
    deadline, pause = None, FIRST_PAUSE
    while True:
        try:
            return work()
        except DatabaseError as error:
            if location.path is not None or not is_passing(error):
                raise
            now = time.monotonic()
            if deadline is None:
                deadline = now + SERVER_SECONDS
                log.info("%s; trying again for up to %.0f s", error, SERVER_SECONDS)
            elif now >= deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))  # many wait for the same server
        pause = min(2 * pause, LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class Added:
    """Number of rows that an `add_all` added; the others were there already."""

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
        self._copy: sqlite3.Connection | None = None  # copy of an older file, migrated in memory
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
            DatabaseCorruptError, DatabaseNewerError, DatabaseOlderError, DatabaseReadOnlyError,
            DatabaseLockedError, DatabaseFullError: see there; the file is left as it is.
            DatabaseError: a server that does not answer, a missing driver, no file to read.
        """
        place = Location.parse(location)
        engine = create_engine(place, read_only=read_only, lock_timeout=lock_timeout)
        store = cls(engine, place, read_only=read_only)
        try:
            store._persistently(lambda: store._make_ready(lock_timeout), has_answered)
        except (DatabaseCorruptError, DatabaseNewerError, DatabaseOlderError) as error:
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
            if not self.read_only:
                schema_versions.refuse_published(sa.inspect(connection).get_table_names(), self.location)
        is_sqlite = self._engine.dialect.name == "sqlite"
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
        if not self.read_only and self._location.path is not None:
            empty_log(self._engine, self._location)
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
        self._add_observed(lambda insertion: insertion.probe(probe))

    def add_check(self, check: Check) -> None:
        """Record whether a variant was right where it was used; it is committed when this returns."""
        self._add_observed(lambda insertion: insertion.check(check))

    def _add_observed(self, insert: Callable[[Insertion], bool]) -> None:
        with self._writing() as connection:
            insertion = Insertion(connection)
            insert(insertion)
            insertion.require_readable()
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
        """Adds records in one transaction. Repeating it after one whose end is unknown adds nothing twice."""
        with self._writing() as connection:
            insertion = Insertion(connection)
            added = Added(
                sum(map(insertion.measurement, measurements)),
                sum(map(insertion.baseline, baselines)),
                sum(map(insertion.rates, rates)),
                sum(map(insertion.prediction, predictions)),
            )
            insertion.require_readable()
            return added

    def forget(self, selection: Selection) -> Forgotten:
        """Delete what is selected; it is committed when this returns."""

        def forget() -> Forgotten:
            with self._writing() as connection:
                return forgetting.forget(connection, selection)

        forgotten = self._persistently(forget)
        self.generation = next(self._writes)
        return forgotten

    def count(self, selection: Selection) -> Forgotten:
        """Counts the rows that `forget` would delete."""

        def count() -> Forgotten:
            with typed_errors(self._location), self._engine.connect() as connection:
                return forgetting.count(connection, selection)

        return self._persistently(count)

    def _rows(self, query: str, parameters: Mapping[str, object]) -> list[Row]:
        def read() -> list[Row]:
            with typed_errors(self._location), self._engine.connect() as connection:
                return list(connection.execute(sa.text(query), parameters).mappings())

        return self._persistently(read)

    def _persistently(
        self, work: Callable[[], T], is_passing: Callable[[DatabaseError], bool] = is_passing
    ) -> T:
        return persistently(self._location, work, is_passing)

    # --- upkeep --------------------------------------------------------------------------------------------

    def damage(self) -> list[str]:
        """Lists what the database itself finds wrong with its file: damaged pages, references to nothing."""
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
