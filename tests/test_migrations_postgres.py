"""A PostgreSQL database of the first version keeps what it holds. Needs a server (SPARSEGEN_TEST_POSTGRES)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from alembic import command
from tuning_samples import H100, baseline, other_operators, timed, workload

from sparsegen.operators import ItemValues, SpmmProblem
from sparsegen.tuning_db import migrations
from sparsegen.tuning_db.models import Base
from sparsegen.tuning_db.store import Store

SERVER = os.environ.get("SPARSEGEN_TEST_POSTGRES", "")
BATCH = SpmmProblem(128, 256, 64, batch=8, item_values=ItemValues.OWN)
pytestmark = pytest.mark.skipif(not SERVER, reason="no server")


@contextmanager
def schema(name: str) -> Iterator[str]:
    """The URL of an empty schema, gone at the end."""
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        admin.execute(f"CREATE SCHEMA {name}")
        yield f"{SERVER}?options=-csearch_path%3D{name}"
        admin.execute(f"DROP SCHEMA {name} CASCADE")


def copy_rows(source: str, target: str) -> None:
    """All rows, of the columns that the target has."""
    import psycopg

    with psycopg.connect(SERVER, autocommit=True) as connection:
        for table in (t.name for t in Base.metadata.sorted_tables):
            found = connection.execute(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
                (target, table),
            )
            columns = ", ".join(name for (name,) in found)
            connection.execute(
                f"INSERT INTO {target}.{table} ({columns}) SELECT {columns} FROM {source}.{table}"
            )
            connection.execute(
                f"SELECT setval(pg_get_serial_sequence('{target}.{table}', 'id'), max(id)) FROM {target}.{table}"
            )


def test_an_older_database_is_migrated_with_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    single = [m for m in other_operators() if m.workload.problem.batch == 1]  # batches came later
    written = [timed(10.0), timed(20.0, workload(n=96)), *single]
    with ExitStack() as schemas:
        current, old = (
            schemas.enter_context(schema(name)) for name in ("sparsegen_current", "sparsegen_old")
        )
        with Store.open(current) as store:
            store.add_all(written, [baseline(5.0)])
        with monkeypatch.context() as patched:
            upgrade = command.upgrade
            patched.setattr(migrations, "HEAD", "0001")
            patched.setattr(command, "upgrade", lambda config, _: upgrade(config, "0001"))
            Store.open(old).close()
        copy_rows("sparsegen_current", "sparsegen_old")
        with Store.open(old) as store:
            assert store.found_schema == "0001"
            assert store.all_measurements() == written and store.all_baselines() == [baseline(5.0)]
            again = replace(written[0], workload=replace(written[0].workload, problem=BATCH))
            store.add_measurement(again)
            assert store.measurements(again.workload, H100) == [again]
            assert store.measurements(written[0].workload, H100) == [written[0]]
        with Store.open(old) as store:
            assert store.found_schema == migrations.HEAD
