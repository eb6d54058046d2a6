"""Alembic migrations of the tuning database, run from Python: there is no alembic.ini.

A schema change is one new file in ``versions`` and its name at the end of `schema_versions.REVISIONS`; the models must
then match what the migrations make, which a test holds.
"""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path

import sqlalchemy as sa

from sparsegen.errors import DatabaseCorruptError, DatabaseNewerError, DatabaseOlderError
from sparsegen.tuning_db import schema_versions
from sparsegen.tuning_db.models import Base

_ADVISORY_LOCK = 0x73706172  # any number, the same for all: "spar"
_alembic_is_global = threading.Lock()  # Alembic's `context` and `op` stand for one migration at a time


def current_revision(connection: sa.Connection) -> str | None:
    """The schema version, or None for a database that sparsegen may make its own.

    Raises:
        DatabaseCorruptError: it holds tables, but not sparsegen's.
        DatabaseNewerError: a newer sparsegen wrote it.
        DatabaseOlderError: a sparsegen of before the first release wrote it.
    """
    tables = set(sa.inspect(connection).get_table_names())
    if schema_versions.VERSION_TABLE not in tables:
        ours = tables & set(Base.metadata.tables)
        foreign = tables if connection.dialect.name == "sqlite" else ours
        if foreign:
            raise DatabaseCorruptError(
                f"the database holds other tables ({', '.join(sorted(foreign)[:4])}) and is not sparsegen's; "
                "it is left as it is. Name another with --db"
            )
        return None
    # The table's name is a constant of ours.
    found = (
        connection.exec_driver_sql(f"SELECT version_num FROM {schema_versions.VERSION_TABLE}").scalars().all()
    )
    if len(found) != 1:
        raise DatabaseCorruptError(f"the database records {len(found)} schema versions instead of one")
    revision = str(found[0])
    if revision < schema_versions.REVISIONS[0]:
        raise DatabaseOlderError(
            f"the database has schema version {revision}, which no release had; this sparsegen reads "
            f"{schema_versions.REVISIONS[0]} and later ones. Export it with the sparsegen that wrote it (sparsegen db "
            "export), and import that into a new database"
        )
    if revision not in schema_versions.REVISIONS:
        raise DatabaseNewerError(
            f"the database has schema version {revision}, this sparsegen knows up to {schema_versions.HEAD}; "
            "upgrade sparsegen, or name another database with --db"
        )
    missing = set(Base.metadata.tables) - tables
    if revision == schema_versions.HEAD and missing:
        raise DatabaseCorruptError(f"the database lacks sparsegen's tables {', '.join(sorted(missing))}")
    return revision


def upgrade(connection: sa.Connection) -> str | None:
    """Bring the schema to `HEAD` within the connection's transaction; returns the version it had.

    Processes that open a new database together wait for each other: SQLite's transaction holds the write lock
    already, PostgreSQL takes an advisory one, and the version is read again under it.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
    revision = current_revision(connection)
    if revision == schema_versions.HEAD:
        return revision
    if revision is None and schema_versions.REVISIONS[-1] == schema_versions.HEAD:
        _create(connection)
        return None
    # Alembic takes half a second to import and to run; only databases of older versions need it.
    command, config_module = import_module("alembic.command"), import_module("alembic.config")
    config = config_module.Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    with _alembic_is_global:
        command.upgrade(config, "head")
    return revision


def _create(connection: sa.Connection) -> None:
    """The tables of the newest version in a new database, as the migrations would make them, and Alembic's record."""
    Base.metadata.create_all(connection)
    version = sa.Table(
        schema_versions.VERSION_TABLE,
        sa.MetaData(),
        sa.Column("version_num", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("version_num", name=f"{schema_versions.VERSION_TABLE}_pkc"),
    )
    version.create(connection)
    connection.execute(sa.insert(version).values(version_num=schema_versions.HEAD))
