"""Opens the database behind a location and turns its failures into sparsegen's typed errors.

SQLite runs in WAL mode, where readers never wait for a writer, with ``synchronous=NORMAL``: a killed process
loses nothing that was committed, and a power cut at most the last few measurements, never the file. Where the
file system refuses WAL (no shared memory), the rollback journal is used with ``synchronous=FULL``, since
NORMAL could damage the file there.
"""

from __future__ import annotations

import logging
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from sparsegen.errors import (
    DatabaseError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseReadOnlyError,
    DatabaseUnavailableError,
)
from sparsegen.system.extras import install_command
from sparsegen.tuning_db import sqlite_files
from sparsegen.tuning_db.location import Location

log = logging.getLogger(__name__)

# SQLSTATEs of PostgreSQL: a server that shuts down, has crashed, starts, or has as many connections as it takes; and
# two transactions of which one had to give way.
GOING_OR_COMING = ("57P01", "57P02", "57P03", "53300")
# The driver tells no SQLSTATE of a connection that the server refuses: its words.
REFUSALS = {
    "shutting down": "57P01",
    "recovery mode": "57P02",
    "not yet accepting connections": "57P03",
    "starting up": "57P03",
    "too many clients": "53300",
    "remaining connection slots": "53300",
}
CROSSED = ("40P01", "40001")
WRITES = "sparsegen_writes"  # execution option: this connection's transactions write


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
        # A connection for each transaction: hundreds of searches that each kept one open would be more than a server
        # takes, and one that is kept does not outlive a server's restart.
        engine = sa.create_engine(location.url, poolclass=sa.pool.NullPool)
    except ModuleNotFoundError as error:
        ours = error.name == "psycopg"
        remedy = install_command("postgres") if ours else "install the package that has it"
        raise DatabaseError(f"{location}: the driver {error.name!r} is missing; {remedy}") from None
    except sa.exc.ArgumentError as error:
        raise DatabaseError(
            f"{location}: {error}; write a path, or a URL such as postgresql://user@host/name"
        ) from None
    if engine.dialect.name == "postgresql":

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(lock_timeout * 1000)}")
            if read_only:
                connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    return engine


def _sqlite_engine(path: Path, *, read_only: bool, lock_timeout: float) -> sa.Engine:
    sqlite_files.check_file(path, read_only=read_only)

    def connect() -> sqlite3.Connection:
        connection = sqlite_files.connect(path, read_only=read_only, lock_timeout=lock_timeout)
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


def copied_to_memory(engine: sa.Engine | None) -> tuple[sa.Engine, sqlite3.Connection]:
    """A copy of a SQLite database in this process's memory, which lives until the connection is closed.

    Args:
        engine: the database; None for an empty one.
    """
    name = f"file:sparsegen-{uuid.uuid4().hex}?mode=memory&cache=shared"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)

    kept = connect()
    if engine is None:
        return _engine_of(connect), kept
    source = engine.raw_connection()
    try:
        opened = source.driver_connection
        assert isinstance(opened, sqlite3.Connection)
        opened.backup(kept)
    finally:
        source.close()
    return _engine_of(connect), kept


def set_foreign_keys(connection: sa.Connection, *, on: bool) -> None:
    """Switches SQLite's check of foreign keys on this connection; call it between transactions, as it has no effect in
    one.
    """
    connection.connection.cursor().execute(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}")


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
            if sqlite_files.primary_code(error) != sqlite3.SQLITE_BUSY:
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
    def connect(connection: Any, record: object) -> None:
        connection.execute(f"PRAGMA synchronous = {level}")

    engine.dispose()  # open connections get the level when they reconnect


def pragma(engine: sa.Engine, *texts: str) -> list[Any]:
    """The rows of the last of SQLite's PRAGMAs, run on one connection outside any transaction, as some must be."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        for text in texts:
            cursor.execute(f"PRAGMA {text}")
        return list(cursor.fetchall())
    finally:
        connection.close()


def empty_log(engine: sa.Engine, location: Location) -> None:
    """Move all of a SQLite file's log into the file, which is then whole when it is copied without the log.

    SQLite does so when the last connection is closed, but not if that one only reads, as a process's look-ups do.
    A log that another process needs for longer than a second stays: nothing in it is lost, and the next writer tries
    again.
    """
    with suppress(DatabaseError), typed_errors(location):
        pragma(engine, "busy_timeout = 1000", "wal_checkpoint(TRUNCATE)")


@contextmanager
def typed_errors(location: Location) -> Iterator[None]:
    """Turn the database's own errors into sparsegen's."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _typed(error, location) from error
    except sqlite_files.FAILURES as error:
        raise sqlite_files.typed(error, location) from error
    except sa.exc.SQLAlchemyError as error:
        raise DatabaseError(f"{location}: {error}") from error


def _typed(error: sa.exc.DBAPIError, location: Location) -> DatabaseError:
    if isinstance(error.orig, sqlite3.Error):
        return sqlite_files.typed(error.orig, location)
    state = _state(error)
    facts = f"{location}: {str(error.orig).strip()}"
    if state in ("53100", "53200", "53400"):
        return DatabaseFullError(f"{facts}; free space on the server and run the command again")
    if state in ("55P03", "40P01", "57014"):
        return DatabaseLockedError(f"{facts}; another process holds the database, try again later")
    if state in ("25006", "42501"):
        return DatabaseReadOnlyError(f"{facts}; ask for write access or name another database with --db")
    if state[:2] in ("28", "3D"):
        return DatabaseError(f"{facts}; check the URL")
    if state[:2] == "08" or state in GOING_OR_COMING or not state:
        return DatabaseUnavailableError(f"{facts}; check the URL and that the server runs")
    return DatabaseError(facts)


def is_passing(error: DatabaseError) -> bool:
    """True if the same transaction may succeed in a moment: the server is away or full, or two writers crossed."""
    if isinstance(error, DatabaseUnavailableError):
        return True
    return _state(error.__cause__) in CROSSED


def has_answered(error: DatabaseError) -> bool:
    """True if the error `is_passing` and came from the server itself: one that does not answer may not exist at all."""
    return _state(error.__cause__) in (*GOING_OR_COMING, *CROSSED)


def _state(error: BaseException | None) -> str:
    """The SQLSTATE; empty where there is none."""
    if not isinstance(error, sa.exc.DBAPIError):
        return ""
    told: str | None = getattr(error.orig, "sqlstate", None)
    return told or next((state for words, state in REFUSALS.items() if words in str(error.orig)), "")
