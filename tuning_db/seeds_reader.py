"""The tuning results that sparsegen comes with, read from SQLite.

An installed package holds the file. In a source tree it is made from the JSON beside it when it is first needed, and
kept in the cache for as long as neither the JSON nor what makes the file has changed.
"""

from __future__ import annotations

import hashlib
import sqlite3
from functools import cache
from pathlib import Path

from sparsegen.errors import CacheError
from sparsegen.settings import Settings
from sparsegen.system.loggers import logger
from sparsegen.system.private import private_folder
from sparsegen.tuning_db import seed_file
from sparsegen.tuning_db.remembered import Remembered
from sparsegen.tuning_db.sqlite_files import connect
from sparsegen.tuning_db.sqlite_reader import LOCK_TIMEOUT, SqliteReader

FOLDER = Path(__file__).parent / "seeds"


class SeedsReader(SqliteReader):
    """Rows that the strict reader of exports has accepted: a test holds that, so they are not checked again."""

    checks_rows = False


@cache
def seeds() -> Remembered:
    """Returns the packaged results, as dispatch reads them: they are never written, so that each question is asked
    once.
    """
    return Remembered(packaged())


@cache
def packaged() -> SeedsReader:
    """The packaged results, whole; the file is made or opened when the first question is asked."""
    return SeedsReader("the packaged tuning results", _connect)


def _connect() -> sqlite3.Connection:
    packaged = FOLDER / seed_file.NAME
    if packaged.is_file():
        return _opened(packaged)
    documents = seed_file.seed_documents(FOLDER)
    kept = Settings.from_environment().cache / "seeds" / _name(FOLDER, documents)
    try:
        private_folder(kept.parent)
        if not kept.is_file():
            _make(documents, kept)
        return _opened(kept)
    except (CacheError, OSError, sqlite3.Error) as error:
        logger(__name__).warning("the packaged tuning results are read from JSON in every process: %s", error)
        memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        seed_file.fill(memory, map(seed_file.read, documents))
        return memory


def _opened(file: Path) -> sqlite3.Connection:
    return connect(file, read_only=True, lock_timeout=LOCK_TIMEOUT)


def _name(folder: Path, documents: list[Path]) -> str:
    """Returns a name for the folder and the state of the JSON and of the module that reads it; it changes with
    these.
    """
    states = [
        (f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in (*documents, Path(seed_file.__file__))
    ]
    place, state = (hashlib.sha256(repr(part).encode()).hexdigest()[:16] for part in (str(folder), states))
    return f"{place}-{state}.db"


def _make(documents: list[Path], file: Path) -> None:
    """Write the file whole, and remove those of earlier states of the same source tree."""
    from sparsegen.system.publish import publish_file

    work = sqlite3.connect(":memory:", isolation_level=None)
    try:
        seed_file.fill(work, map(seed_file.read, documents))
        with publish_file(file) as out:
            out.write(work.serialize())
    finally:
        work.close()
    place = file.name.partition("-")[0]
    for other in file.parent.glob(f"{place}-*.db"):
        if other != file:
            other.unlink(missing_ok=True)
