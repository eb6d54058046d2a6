"""A PostgreSQL database of the first version keeps what it holds. Needs a server (`conftest.postgres`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from alembic import command
from tuning_samples import H100, WHEN_COLD, baseline, columns_of_before, other_operators, timed, workload

from sparsegen.operators import ItemValues, Problem, SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning_db import schema_versions
from sparsegen.tuning_db.layers import open_layers
from sparsegen.tuning_db.models import Base
from sparsegen.tuning_db.store import Added, Store

BATCH = SpmmProblem(128, 256, 64, batch=8, item_values=ItemValues.OWN)


@contextmanager
def schema(server: str, name: str) -> Iterator[str]:
    """The URL of an empty schema, gone at the end."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        admin.execute(f"CREATE SCHEMA {name}")
        yield f"{server}?options=-csearch_path%3D{name}"
        admin.execute(f"DROP SCHEMA {name} CASCADE")


def copy_rows(server: str, source: str, target: str, problems: list[Problem]) -> None:
    """All rows, of the columns that the target has; those of problems as they were."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        found = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'problems'",
            (target,),
        )
        names = [name for (name,) in found if name != "id"]
        for problem in problems:
            row = columns_of_before(problem)
            connection.execute(
                f"INSERT INTO {target}.problems ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})",
                [str(row[name]) if isinstance(row[name], str) else row[name] for name in names],
            )
        for table in (t.name for t in Base.metadata.sorted_tables if t.name != "problems"):
            found = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
                (target, table),
            )
            names = [name for (name,) in found]
            if not names:
                continue  # a table of later
            wanted = ", ".join(WHEN_COLD if name == "cold" else name for name in names)
            columns = ", ".join(names)
            connection.execute(
                f"INSERT INTO {target}.{table} ({columns}) SELECT {wanted} FROM {source}.{table}"
            )
            connection.execute(
                f"SELECT setval(pg_get_serial_sequence('{target}.{table}', 'id'), max(id)) FROM {target}.{table}"
            )


@pytest.mark.parametrize("revision", ["0001", "0002"])
def test_an_older_database_is_migrated_with_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, postgres: str, revision: str
) -> None:
    others = other_operators()
    if revision == "0001":
        others = [m for m in others if m.workload.problem.batch == 1]  # batches came later
    written = [timed(10.0), timed(20.0, workload(n=96)), *others]
    with ExitStack() as schemas:
        current, old = (
            schemas.enter_context(schema(postgres, name)) for name in ("sparsegen_current", "sparsegen_old")
        )
        with Store.open(current) as store:
            store.add_all(written, [baseline(5.0)])
        with monkeypatch.context() as patched:
            upgrade = command.upgrade
            patched.setattr(schema_versions, "HEAD", revision)
            patched.setattr(command, "upgrade", lambda config, _: upgrade(config, revision))
            Store.open(old).close()
        problems = list(dict.fromkeys(m.workload.problem for m in written))
        copy_rows(postgres, "sparsegen_current", "sparsegen_old", problems)
        with Store.open(old) as store:
            assert store.found_schema == revision
            assert store.all_measurements() == written and store.all_baselines() == [baseline(5.0)]
            again = replace(written[0], workload=replace(written[0].workload, problem=BATCH))
            store.add_measurement(again)
            assert store.measurements(again.workload, H100) == [again]
            assert store.measurements(written[0].workload, H100) == [written[0]]
            assert store.add_all(written, []) == Added(0, 0), "each problem has the form that it gets today"
        with Store.open(old) as store:
            assert store.found_schema == schema_versions.HEAD


def test_a_fresh_database_can_be_read(postgres: str) -> None:
    """Before anything was recorded there are no tables, and reading makes none."""
    import psycopg

    settings = replace(Settings.from_environment(), db="/nowhere/tuning.db")
    with schema(postgres, "sparsegen_fresh") as url:
        with Store.open(url, read_only=True) as store:
            assert not store.list_workloads() and not store.all_measurements()
        with open_layers(settings, url) as layers:
            assert not layers.measurements(workload(), H100)
        with psycopg.connect(postgres) as connection:
            counted = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'sparsegen_fresh'"
            assert connection.execute(counted).fetchone() == (0,)
        with Store.open(url) as store:
            store.add_measurement(timed(10.0))
        with Store.open(url, read_only=True) as store:
            assert store.all_measurements() == [timed(10.0)]
