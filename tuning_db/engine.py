"""Opens the database behind a location and turns its failures into sparsegen's typed errors.

SQLite runs in WAL mode, where readers never wait for a writer, with ``synchronous=NORMAL``: a killed process
loses nothing that was committed, and a power cut at most the last few measurements, never the file. Where the
file system refuses WAL (no shared memory), the rollback journal is used with ``synchronous=FULL``, since
NORMAL could damage the file there.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from sparsegen.errors import (
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseReadOnlyError,
)
from sparsegen.settings import absolute

log = logging.getLogger(__name__)

WRITES = "sparsegen_writes"  # execution option: this connection's transactions write


@dataclass(frozen=True, slots=True)
class Location:
    """Where a database is: a SQLite file, or the URL of a server."""

    path: Path | None
    url: URL | None

    @classmethod
    def parse(cls, text: str | Path) -> Location:
        """From a path or a SQLAlchemy URL (``sqlite:///file``, ``postgresql://user@host/name``)."""
        if isinstance(text, Path) or "://" not in text:
            return cls(absolute(Path(text)), None)
        try:
            url = make_url(text)
        except (sa.exc.ArgumentError, ValueError):
            raise DatabaseError(
                "the database's URL cannot be read; write a path or dialect://user@host/name"
            ) from None
        if url.get_backend_name() == "sqlite":
            if not url.database or url.database == ":memory:":
                raise DatabaseError("a SQLite URL must name a file, as in sqlite:///tuning.db")
            return cls(absolute(Path(url.database)), None)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        return cls(None, url)

    def __str__(self) -> str:
        """For people: the path, or the URL without its password."""
        return str(self.path) if self.url is None else self.url.render_as_string(hide_password=True)


def create_engine(location: Location, *, read_only: bool, lock_timeout: float) -> sa.Engine:
    """An engine whose transactions begin as ours need them; nothing is created or changed here except
    folders.

    Raises:
        DatabaseError: and its children, when the place cannot be used.
    """
    if location.path is not None:
        return _sqlite_engine(location.path, read_only=read_only, lock_timeout=lock_timeout)
    assert location.url is not None
    try:
        engine = sa.create_engine(location.url, pool_pre_ping=True)
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"{location}: the driver {error.name!r} is missing; pip install 'sparsegen[postgres]'"
        ) from None
    except sa.exc.ArgumentError as error:
        raise DatabaseError(f"{location}: {error}") from None
    if engine.dialect.name == "postgresql":

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}")
            if read_only:
                connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    return engine


def _sqlite_engine(path: Path, *, read_only: bool, lock_timeout: float) -> sa.Engine:
    _check_file(path, read_only=read_only)
    mode = "ro" if read_only else "rwc"
    if read_only and not _can_share(path):
        mode = "ro&immutable=1"

    def connect() -> sqlite3.Connection:
        # isolation_level=None: the driver begins no transactions of its own, `begin` below does.
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=lock_timeout,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    return _engine_of(connect)


def _engine_of(connect: Callable[[], sqlite3.Connection]) -> sa.Engine:
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.QueuePool)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A writer takes its lock at once: one that reads first and then writes cannot wait for another's
        # lock.
        writes = connection.get_execution_options().get(WRITES)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def copied_to_memory(engine: sa.Engine) -> tuple[sa.Engine, sqlite3.Connection]:
    """A copy of a SQLite database in this process's memory, which lives until the connection is closed."""
    name = f"file:sparsegen-{uuid.uuid4().hex}?mode=memory&cache=shared"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)

    kept = connect()
    source = engine.raw_connection()
    try:
        opened = source.driver_connection
        assert isinstance(opened, sqlite3.Connection)
        opened.backup(kept)
    finally:
        source.close()
    return _engine_of(connect), kept


def set_foreign_keys(connection: sa.Connection, *, on: bool) -> None:
    """Whether SQLite checks them on this connection; between transactions, for within one it does not listen."""
    connection.connection.cursor().execute(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}")


def _check_file(path: Path, *, read_only: bool) -> None:
    """Refuse what is not a SQLite file before SQLite touches it; make the folder for a new one."""
    if not path.is_absolute():
        raise DatabaseReadOnlyError(
            f"{path} is no place for a database, as this user has no home folder, or the working folder is gone; name "
            "one with --db or SPARSEGEN_DB"
        )
    try:
        if path.is_file():
            if not _begins_like_sqlite(path):
                raise DatabaseCorruptError(
                    f"{path} is not a SQLite database; it is left as it is. Move it away, or name "
                    "another with --db"
                )
            if not read_only and not _writable(path):
                # SQLite would open it for reading in silence, and the first measurement would be lost.
                raise DatabaseReadOnlyError(
                    f"{path} is not writable; make it so, or name another database with --db or SPARSEGEN_DB"
                )
        elif path.exists():
            raise DatabaseError(f"{path} is not a file; name another database with --db")
        elif read_only:
            raise DatabaseError(f"there is no database at {path}; `sparsegen tune` makes one")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise DatabaseReadOnlyError(
            f"{path}: {why}; name another database with --db or SPARSEGEN_DB"
        ) from None


def _begins_like_sqlite(path: Path) -> bool:
    """Whether the file is empty or has SQLite's first bytes, as SQLite sees it without a lock.

    Not by reading it here: POSIX drops all of a process's locks on a file as soon as the process closes any descriptor
    of it (fcntl(2)), but for SQLite's own, which it keeps open that long. Another process would then take itself for
    the last one, remove the log, and leave connections of this one with a "malformed" database.
    """
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:  # one that cannot be read among them: opening it says so
        return _primary_code(error) != sqlite3.SQLITE_NOTADB
    return True


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _can_share(path: Path) -> bool:
    """Whether a reader can take part in WAL: it must write the shared-memory file beside the database.

    On read-only media nobody writes, so the file may be read as immutable, unless a log is left beside it
    whose content would be missed: then SQLite is asked to read it as far as it can, and says so where it
    cannot.
    """
    if _writable(path.parent):
        return True
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def enter_wal_mode(engine: sa.Engine, lock_timeout: float) -> None:
    """Switch a writable SQLite file to WAL; fall back to the rollback journal where it is refused.

    The switch itself does not wait for other connections, so it is tried again until the time limit.
    """
    deadline = time.monotonic() + lock_timeout
    while True:
        try:
            mode = pragma(engine, "journal_mode = WAL")[0][0]
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY:
                log.debug("WAL refused: %s", error)
                mode = "delete"
                break
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    if mode != "wal":
        log.warning("the file system refuses SQLite's WAL mode; writers and readers will wait for each other")
    level = "NORMAL" if mode == "wal" else "FULL"

    @sa.event.listens_for(engine, "connect")
    def connect(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA synchronous = {level}")

    engine.dispose()  # what was opened before gets the level on its next connection


def pragma(engine: sa.Engine, text: str) -> list[Any]:
    """The rows of a SQLite PRAGMA run outside any transaction, as some must be."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA {text}")
        return list(cursor.fetchall())
    finally:
        connection.close()


@contextmanager
def typed_errors(location: Location) -> Iterator[None]:
    """Turn the database's own errors into sparsegen's."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _typed(error, location) from error
    except sqlite3.Error as error:
        raise _typed_sqlite(error, location) from error
    except sa.exc.SQLAlchemyError as error:
        raise DatabaseError(f"{location}: {error}") from error


def _typed(error: sa.exc.DBAPIError, location: Location) -> DatabaseError:
    if isinstance(error.orig, sqlite3.Error):
        return _typed_sqlite(error.orig, location)
    state = getattr(error.orig, "sqlstate", None) or ""
    facts = f"{location}: {str(error.orig).strip()}"
    if state in ("53100", "53200", "53400"):
        return DatabaseFullError(f"{facts}; free space on the server and run the command again")
    if state in ("55P03", "40P01", "57014"):
        return DatabaseLockedError(f"{facts}; another process holds the database, try again later")
    if state in ("25006", "42501"):
        return DatabaseReadOnlyError(f"{facts}; ask for write access or name another database with --db")
    if state[:2] in ("08", "28", "3D") or not state:
        return DatabaseError(f"{facts}; check the URL and that the server runs")
    return DatabaseError(facts)


def _primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 where the driver itself complains."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _typed_sqlite(error: sqlite3.Error, location: Location) -> DatabaseError:
    code = _primary_code(error)
    facts = f"{location}: {error}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseLockedError(
            f"{facts}; another process holds it longer than the time limit, try again later"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return DatabaseReadOnlyError(
            f"{facts}; make the file and its folder writable, or name another database with --db"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DatabaseCorruptError(
            f"{facts}; the file is left as it is. Move it away and import a backup (`sparsegen db import`), "
            "or try SQLite's own `.recover`"
        )
    if code == sqlite3.SQLITE_FULL:
        return DatabaseFullError(f"{facts}; free some space and go on: what was measured is kept")
    return DatabaseError(facts)
