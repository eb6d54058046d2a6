"""The migrations make what the models say, once, whoever comes first."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from sparsegen.errors import DatabaseError
from sparsegen.tuning_db import migrations
from sparsegen.tuning_db.models import OUTCOMES, Base
from sparsegen.tuning_db.records import Outcome
from sparsegen.tuning_db.store import Store


def test_revisions_are_those_on_disk() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == migrations.REVISIONS


def test_the_models_match_the_migrations(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    Store.open(path).close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": migrations.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []
        names = {
            table: {c["name"] for c in sa.inspect(connection).get_check_constraints(table)}
            for table in Base.metadata.tables
        }
    engine.dispose()
    for name, table in Base.metadata.tables.items():
        checks = {str(c.name) for c in table.constraints if isinstance(c, sa.CheckConstraint)}
        assert names[name] == checks


def test_outcomes_match_the_records() -> None:
    assert set(OUTCOMES) == set(Outcome)


def test_opening_again_migrates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    Store.open(path).close()
    monkeypatch.setattr(migrations, "upgrade", lambda connection: pytest.fail("migrated again"))
    Store.open(path).close()


def open_once(path: str) -> None:
    Store.open(path).close()


def test_first_openers_do_not_race(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    for attempt in range(2):
        path = str(tmp_path / f"{attempt}.db")
        openers = [spawn.Process(target=open_once, args=(path,)) for _ in range(3)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join(60)
        assert [opener.exitcode for opener in openers] == [0, 0, 0]


def test_a_failed_migration_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    monkeypatch.setattr(
        "alembic.operations.Operations.create_index",
        lambda *a, **k: (_ for _ in ()).throw(OSError("power cut")),
    )
    with pytest.raises(OSError, match="power cut"):
        Store.open(path)
    monkeypatch.undo()
    assert sqlite3.connect(path).execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    Store.open(path).close()


def test_an_empty_file_is_not_read_as_a_database(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    path.touch()
    with pytest.raises(DatabaseError, match="db migrate"):
        Store.open(path, read_only=True)
    Store.open(path).close()
