"""The schema versions of the tuning database; `migrations` leads from each to the next."""

from __future__ import annotations

from collections.abc import Container

from sparsegen.errors import DatabaseReadOnlyError

REVISIONS = "0006", "0009"  # those that are read, oldest first; no release had another one
HEAD = REVISIONS[-1]
VERSION_TABLE = "sparsegen_version"  # not Alembic's default name, which another application's file may hold
PUBLISHED_TABLE = "published"  # table of a layer that `published` wrote, besides the others
TABLES = (  # tables of the newest version
    "devices",
    "device_rates",
    "matrices",
    "problems",
    "variants",
    "measurements",
    "baselines",
    "probes",
    "checks",
    "predictions",
)


def refuse_published(tables: Container[str], location: object) -> None:
    """Require of a database with these tables that it may be written.

    Raises:
        DatabaseReadOnlyError: it is a published layer.
    """
    if PUBLISHED_TABLE in tables:
        raise DatabaseReadOnlyError(
            f"{location} is a published layer, which is only read; name another database with --db, and this "
            "one in SPARSEGEN_LAYERS"
        )
