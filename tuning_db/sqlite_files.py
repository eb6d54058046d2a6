"""SQLite's files: what may be opened, how, and SQLite's failures as sparsegen's typed errors; no SQLAlchemy here."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from sparsegen.errors import (
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseReadOnlyError,
)

# What SQLite says of a damaged schema quotes it: where that is no text, Python's module fails to decode the message.
FAILURES = (sqlite3.Error, UnicodeDecodeError)


def connect(path: Path, *, read_only: bool, lock_timeout: float) -> sqlite3.Connection:
    """A connection that begins no transactions of its own and may be used from any thread.

    Args:
        lock_timeout: seconds to wait for another process.
    """
    mode = "rwc"
    if read_only:
        mode = "ro" if _can_share(path) else "ro&immutable=1"
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=lock_timeout,
        isolation_level=None,
        check_same_thread=False,
    )


def check_file(path: Path, *, read_only: bool) -> None:
    """Refuse what is not a SQLite file before SQLite touches it; make the folder for a new one."""
    if not path.is_absolute():
        raise DatabaseReadOnlyError(
            f"{path} is no place for a database, as this user has no home folder, or the working folder is gone; name "
            "one with --db or SPARSEGEN_DB"
        )
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISREG(mode):
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
        elif mode is not None:
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


def _mode(path: Path) -> int | None:
    """The mode of what is there now, None where nothing is: asked once, as another process may make the file."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _begins_like_sqlite(path: Path) -> bool:
    """True if the file is empty or has SQLite's first bytes, as SQLite sees it without a lock.

    The file is not read here: POSIX drops all of a process's locks on a file as soon as the process closes any
    descriptor of it (fcntl(2)), but for SQLite's own, which it keeps open that long. Another process would then take
    itself for the last one, remove the log, and leave connections of this one with a "malformed" database.
    """
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:  # one that cannot be read among them: opening it says so
        return primary_code(error) != sqlite3.SQLITE_NOTADB
    return True


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _can_share(path: Path) -> bool:
    """True if a reader can take part in WAL: it must write the shared-memory file beside the database.

    On read-only media there is no writer, so the file may be read as immutable, unless a log is left beside it whose
    content would be missed: then SQLite is asked to read it as far as it can, and says so if it cannot.
    """
    if _writable(path.parent):
        return True
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def primary_code(error: Exception) -> int:
    """SQLite's primary result code, 0 where the driver itself complains."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def typed(error: sqlite3.Error | UnicodeDecodeError, location: object) -> DatabaseError:
    """One of `FAILURES` as sparsegen's error."""
    code, told = primary_code(error), str(error)
    if isinstance(error, UnicodeDecodeError):
        code, told = sqlite3.SQLITE_CORRUPT, "malformed database schema"
    facts = f"{location}: {told}"
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
