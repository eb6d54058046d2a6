"""Selection of the databases to read: existing ones, and the project's, if no other user could have made it.

See docs/trust.md.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sparsegen.system.loggers import logger
from sparsegen.system.private import distrust


def is_there(database: Path) -> bool:
    """True if there is something to open, if only to say why it cannot be."""
    try:
        database.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def is_trusted(database: Path) -> bool:
    """True if only this process's user and root could have put the file there, and it can be reached.

    A missing file is trusted.
    """
    for place in (database.parent, database):
        try:
            why = distrust(place.stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            _warn_once(place, _absolute(place), why)
            return False
    return True


def _absolute(place: Path) -> str:
    try:
        return str(place.absolute())
    except OSError:  # the working folder is gone
        return str(place)


@cache
def _warn_once(place: Path, name: str, why: str) -> None:
    logger(__name__).warning(
        "%s is passed over, as %s; --db or SPARSEGEN_DB has a database read whoever owns it",
        name,
        why,
    )
