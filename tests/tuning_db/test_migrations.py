"""The migrations make what the models say, once, whoever comes first."""

from __future__ import annotations

import multiprocessing
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from patience import LONG
from tuning_samples import H100, baseline, columns_of_before, other_operators, timed, workload

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import DatabaseError, DatabaseOlderError, DatabaseReadOnlyError
from sparsegen.operators import OPERATORS, ItemValues, SddmmProblem, SpmmProblem, fields_of
from sparsegen.tuning_db import migrations, schema_versions
from sparsegen.tuning_db.check import check
from sparsegen.tuning_db.conversion import problem_columns, problem_digest
from sparsegen.tuning_db.models import BASES, CALLED, CHECKED, KINDS, OUTCOMES, TASKS, Base
from sparsegen.tuning_db.records import Basis, Called, MeasuredAs, Measurement, Outcome, Task
from sparsegen.tuning_db.store import Added, Store

BATCH = SpmmProblem(128, 256, 64, batch=8, item_values=ItemValues.OWN)


def test_revisions_are_those_on_disk() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == schema_versions.REVISIONS


def test_a_new_database_gets_the_tables_of_the_models(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"
    Store.open(path).close()
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
    assert set(CALLED) == set(Called) and set(TASKS) == set(Task)


def test_opening_again_migrates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tuning.db"
    Store.open(path).close()
    monkeypatch.setattr(migrations, "upgrade", lambda connection: pytest.fail("migrated again"))
    Store.open(path).close()


@pytest.fixture
def older(tmp_path: Path) -> tuple[Path, list[Measurement]]:
    """A database as sparsegen left it before the first release, and what it holds."""
    warm = timed(4.0, workload(n=48), measured_as=MeasuredAs.WARM)
    written = [timed(10.0), timed(20.0, workload(n=96)), warm, *other_operators()]
    path = tmp_path / "old.db"
    with Store.open(path) as store:
        store.add_all(written, [baseline(5.0)])
    with closing(sqlite3.connect(path)) as old, old:
        for problem in dict.fromkeys(m.workload.problem for m in written):
            row = columns_of_before(problem)
            old.execute(
                "UPDATE problems SET fields = ?, digest = ? WHERE digest = ?",
                (row["fields"], row["digest"], problem_columns(problem)["digest"]),
            )
        [(probes,)] = old.execute("SELECT sql FROM sqlite_master WHERE name = 'probes'").fetchall()
        old.execute("DROP TABLE probes")
        old.execute(without_races(probes))
        old.execute(f"UPDATE {schema_versions.VERSION_TABLE} SET version_num = '0006'")
    return path, written


def without_races(probes: str) -> str:
    """The table's definition as it was before probes said how calls came and what they timed."""
    lines = probes.splitlines()
    added = r"^\s*(called|task|context) |ck_probes_(called|task)"
    kept = [line for line in lines if not re.search(added, line)]
    return "\n".join(kept).replace("called, task, ", "")


def test_the_defaults_of_the_migration_are_those_of_today() -> None:
    """Until one of an operator's fields is added; a default never changes."""
    script = import_module("sparsegen.tuning_db.migrations.versions.0009_first_release")
    for operator, defaults in script.DEFAULTS.items():
        fields = fields_of(OPERATORS[operator])
        for name, value in (script.EVERY | defaults).items():
            assert fields[name].from_json(value) == fields[name].default, (operator, name)
        assert {n for n, f in fields.items() if f.default is not None} == {*script.EVERY, *defaults}


def test_an_older_file_is_migrated_with_what_it_holds(older: tuple[Path, list[Measurement]]) -> None:
    path, written = older
    with Store.open(path) as store:
        assert store.found_schema == "0006" and store.all_measurements() == written
        assert store.all_baselines() == [baseline(5.0)] and not check(store)
        again = replace(written[0], workload=replace(written[0].workload, problem=BATCH))
        store.add_measurement(again)
        assert store.measurements(again.workload, H100) == [again]
        assert store.measurements(written[0].workload, H100) == [written[0]]
        assert store.add_all(written, [baseline(5.0)]) == Added(0, 0), "each problem has today's form"
    with Store.open(path) as store:
        assert (
            store.found_schema == schema_versions.HEAD and len(store.all_measurements()) == len(written) + 1
        )


def test_an_older_file_is_read_without_being_changed(older: tuple[Path, list[Measurement]]) -> None:
    path, written = older
    before = path.read_bytes()
    with Store.open(path, read_only=True) as store:
        assert store.all_measurements() == written
        for m in written:
            assert store.measurements(m.workload, H100) == [m]
            found = choose(m.workload, H100, store)
            assert (found.how, found.family.name) == (How.EXACT, m.variant.family)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: store.all_measurements() == written, range(16))) == [True] * 16
        with pytest.raises(DatabaseReadOnlyError):
            store.add_measurement(written[0])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"operator": "row_sums"}, "no operator 'row_sums'"),
        ({"digest": "0" * 64}, "not as this sparsegen writes"),
        ({"fields": "no JSON", "digest": problem_digest("sddmm", "no JSON")}, "no problem of sddmm"),
        ({"fields": "[1]", "digest": problem_digest("sddmm", "[1]")}, "no problem of sddmm"),
    ],
)
def test_rows_that_sparsegen_would_not_write_stay_apart(
    older: tuple[Path, list[Measurement]], changed: dict[str, str], why: str
) -> None:
    path, written = older
    row = columns_of_before(SddmmProblem(128, 256, 48)) | {"operator": "sddmm"} | changed
    if "operator" in changed:
        row["digest"] = problem_digest(row["operator"], row["fields"])
    with closing(sqlite3.connect(path)) as old, old:
        old.execute(
            "INSERT INTO problems (operator, fields, digest) VALUES (:operator, :fields, :digest)", row
        )
    with Store.open(path) as store:
        assert store.all_measurements() == written
        [told] = store.unknown_problems()
        assert why in told.why


def test_databases_of_before_that_are_refused(older: tuple[Path, list[Measurement]]) -> None:
    path, _ = older
    with closing(sqlite3.connect(path)) as old, old:
        old.execute(f"UPDATE {schema_versions.VERSION_TABLE} SET version_num = '0003'")
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(
            DatabaseOlderError, match=r"old\.db: .*version 0003, which no release had; .*db export"
        ):
            Store.open(path, read_only=read_only)
    assert path.read_bytes() == before


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
