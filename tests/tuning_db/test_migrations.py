"""The migrations make what the models say, once, whoever comes first."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from patience import LONG
from tuning_samples import (
    H100,
    MEASURED_RATES,
    WHEN_COLD,
    baseline,
    checked,
    columns_of_before,
    other_operators,
    probe,
    timed,
    workload,
)

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import DatabaseError, DatabaseReadOnlyError
from sparsegen.operators import ItemValues, SpmmProblem
from sparsegen.tuning_db import migrations, schema_versions
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.models import BASES, CHECKED, KINDS, OUTCOMES, Base
from sparsegen.tuning_db.records import Basis, DeviceRates, MeasuredAs, Measurement, Outcome
from sparsegen.tuning_db.store import Added, Store

BATCH = SpmmProblem(128, 256, 64, batch=8, item_values=ItemValues.OWN)


def test_revisions_are_those_on_disk() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == schema_versions.REVISIONS


@pytest.mark.parametrize("is_new", [True, False])
def test_the_models_match_the_migrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """A new database gets the models' tables at once, an older one by migrations."""
    path = tmp_path / "tuning.db"
    with monkeypatch.context() as patched:
        if not is_new:
            upgrade = command.upgrade
            patched.setattr(schema_versions, "HEAD", "0001")
            patched.setattr(command, "upgrade", lambda config, _: upgrade(config, "0001"))
        Store.open(path).close()
    with Store.open(path) as store:
        assert store.found_schema == (schema_versions.HEAD if is_new else "0001")
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema_versions.VERSION_TABLE, "compare_type": True}
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


def test_words_match_the_records() -> None:
    assert set(OUTCOMES) == set(Outcome) and set(CHECKED) < set(Outcome)
    assert set(KINDS) == set(MeasuredAs)
    assert set(BASES) == set(Basis)


def test_opening_again_migrates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    Store.open(path).close()
    monkeypatch.setattr(migrations, "upgrade", lambda connection: pytest.fail("migrated again"))
    Store.open(path).close()


@pytest.fixture(params=["0001", "0002"])
def older(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, list[Measurement]]:
    """A database as an older version of sparsegen left it, and what it holds."""
    revision = request.param
    others = other_operators()
    if revision == "0001":
        others = [m for m in others if m.workload.problem.batch == 1]  # batches came later
    warm = timed(4.0, workload(n=48), measured_as=MeasuredAs.WARM)
    written = [timed(10.0), timed(20.0, workload(n=96)), warm, *others]
    current = tmp_path / "current.db"
    with Store.open(current) as store:
        store.add_all(written, [baseline(5.0)])
        problems = list(dict.fromkeys(m.workload.problem for m in written))
    path = tmp_path / "old.db"
    with monkeypatch.context() as patched:
        upgrade = command.upgrade
        patched.setattr(schema_versions, "HEAD", revision)
        patched.setattr(command, "upgrade", lambda config, _: upgrade(config, revision))
        Store.open(path).close()
    old, new = sqlite3.connect(path), sqlite3.connect(current)

    def columns_of(table: str) -> list[str]:
        return [row[1] for row in old.execute(f"PRAGMA table_info({table})")]

    def insert(table: str, row: Sequence[object]) -> None:
        old.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    for table in ("devices", "matrices", "variants", "measurements", "baselines"):
        wanted = [WHEN_COLD if column == "cold" else column for column in columns_of(table)]
        for row in new.execute(f"SELECT {', '.join(wanted)} FROM {table}"):
            insert(table, row)
    for number, problem in enumerate(problems, 1):
        row = {"id": number} | columns_of_before(problem)
        insert(
            "problems", [str(row[c]) if isinstance(row[c], str) else row[c] for c in columns_of("problems")]
        )
    old.commit()
    old.close()
    new.close()
    return path, written


def test_an_older_file_is_migrated_with_what_it_holds(older: tuple[Path, list[Measurement]]) -> None:
    path, written = older
    with Store.open(path) as store:
        assert store.found_schema in schema_versions.REVISIONS[:2] and store.all_measurements() == written
        assert store.all_baselines() == [baseline(5.0)] and not check(store)
        assert store.rates(H100) is None
        store.add_rates(DeviceRates(H100, MEASURED_RATES))
        assert store.rates(H100) == MEASURED_RATES
        again = replace(written[0], workload=replace(written[0].workload, problem=BATCH))
        store.add_measurement(again)
        assert store.measurements(again.workload, H100) == [again]
        assert store.measurements(written[0].workload, H100) == [written[0]]
        store.add_probe(probe(10.0, 8.0))
        store.add_check(checked())
        assert store.all_probes() == [probe(10.0, 8.0)] and store.all_checks() == [checked()]
        assert store.add_all(written, [baseline(5.0)]) == Added(0, 0), (
            "each problem has the form that it gets today"
        )
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    held = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'measurements'").fetchone()[0]
    assert "problems" in held and "_alembic" not in held
    connection.close()


def test_an_older_file_is_read_without_being_changed(older: tuple[Path, list[Measurement]]) -> None:
    path, written = older
    before = path.read_bytes()
    with Store.open(path, read_only=True) as store:
        assert store.all_measurements() == written
        assert store.rates(H100) is None
        for m in written:
            assert store.measurements(m.workload, H100) == [m]
            found = choose(m.workload, H100, store)
            assert (found.how, found.family.name) == (How.EXACT, m.variant.family)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: store.all_measurements() == written, range(16))) == [True] * 16
        with pytest.raises(DatabaseReadOnlyError):
            store.add_measurement(written[0])
    assert path.read_bytes() == before


def test_rows_that_sparsegen_would_not_write_stay_apart(older: tuple[Path, list[Measurement]]) -> None:
    """An unknown operator's row, and one that differs from another in a column that says nothing of its problem."""
    path, written = older
    with sqlite3.connect(path) as old:
        columns = [row[1] for row in old.execute("PRAGMA table_info(problems)")][1:]
        for changed, value in (("operator", "'row_sums'"), ("layout", "'row'")):
            chosen = ", ".join(value if column == changed else column for column in columns)
            old.execute(
                f"INSERT INTO problems ({', '.join(columns)}) SELECT {chosen} FROM problems WHERE operator = 'sddmm'"
            )
    with Store.open(path) as store:
        assert store.all_measurements() == written
        told = [problem.why for problem in store.unknown_problems()]
        assert len(told) == 4 and sum("no operator 'row_sums'" in why for why in told) == 2


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
            opener.join(LONG)
        assert [opener.exitcode for opener in openers] == [0, 0, 0]


def read_all(path: str, expected: list[Measurement]) -> None:
    with Store.open(path, read_only=True) as store:
        assert store.all_measurements() == expected


def test_an_older_file_is_migrated_once_whoever_comes_first(older: tuple[Path, list[Measurement]]) -> None:
    path, written = older
    spawn = multiprocessing.get_context("spawn")
    openers = [spawn.Process(target=open_once, args=(str(path),)) for _ in range(2)]
    openers.append(spawn.Process(target=read_all, args=(str(path), written)))
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join(LONG)
    assert [opener.exitcode for opener in openers] == [0, 0, 0]
    with Store.open(path) as store:
        assert store.all_measurements() == written and not check(store)


def test_a_failed_beginning_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    monkeypatch.setattr(  # of the table of the version, which is the last
        sa.Table, "create", lambda *a, **k: (_ for _ in ()).throw(OSError("power cut"))
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
