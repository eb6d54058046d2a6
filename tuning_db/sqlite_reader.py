"""Reads a SQLite file of the newest schema with Python's own `sqlite3`: a look-up needs no SQLAlchemy."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from sparsegen.tuning_db import schema_versions, sqlite_files
from sparsegen.tuning_db.reading import RecordsReader
from sparsegen.tuning_db.row_checks import Row

LOCK_TIMEOUT = 30.0  # seconds to wait for another process


class SqliteReader(RecordsReader):
    """Records read through one connection, by any thread; nothing is ever written.

    ``generation`` never grows: what other processes write is found by `layers.files_state`.
    """

    generation = 0

    def __init__(self, location: str, connect: Callable[[], sqlite3.Connection]) -> None:
        """Use `open_sqlite`.

        Args:
            connect: called for the first query, and again for the first one after `close`.
        """
        super().__init__()
        self._location, self._connect = location, connect
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self._location

    def _rows(self, query: str, parameters: Mapping[str, object]) -> list[Row]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                found = self._connection.execute(query, dict(parameters))
                names = [column[0] for column in found.description]
                # A `sqlite3.Row` compares names one by one: of forty columns that takes longer than all of this.
                return [dict(zip(names, row, strict=True)) for row in found]
            except sqlite_files.FAILURES as error:
                raise sqlite_files.typed(error, self._location) from error

    def tables(self) -> set[str]:
        """Returns the names of the tables; empty for a file that is about to be filled."""
        rows = self._rows("SELECT name FROM sqlite_master WHERE type = 'table'", {})
        return {row["name"] for row in rows}

    def has_newest_schema(self) -> bool:
        """True if the tables are those that the queries are made for."""
        if not self.tables() >= {*schema_versions.TABLES, schema_versions.VERSION_TABLE}:
            return False
        found = self._rows(f"SELECT version_num FROM {schema_versions.VERSION_TABLE}", {})
        return [row["version_num"] for row in found] == [schema_versions.HEAD]

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


def tables_of(path: Path) -> set[str]:
    """Names of a database's tables; none where no file is, or one that another process has made and not yet filled.

    Raises:
        DatabaseError: see `open_sqlite`.
    """
    if not path.exists():
        return set()
    reader = _unchecked(path)
    try:
        return reader.tables()
    finally:
        reader.close()


def _unchecked(path: Path) -> SqliteReader:
    """A reader of whatever the file holds.

    Raises:
        DatabaseError: see `open_sqlite`.
    """
    sqlite_files.check_file(path, read_only=True)
    return SqliteReader(
        str(path), lambda: sqlite_files.connect(path, read_only=True, lock_timeout=LOCK_TIMEOUT)
    )


def open_sqlite(path: Path) -> SqliteReader | None:
    """A reader of the file; None where its schema is not the newest, which `Store.open` has an answer to.

    Raises:
        DatabaseCorruptError, DatabaseReadOnlyError, DatabaseLockedError: see there; the file is left as it is.
        DatabaseError: there is no such file.
    """
    reader = _unchecked(path)
    try:
        is_newest = reader.has_newest_schema()
    except BaseException:
        reader.close()
        raise
    if is_newest:
        return reader
    reader.close()
    return None
