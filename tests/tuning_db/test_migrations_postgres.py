"""A PostgreSQL database of before the first release keeps what it holds. Needs a server (`conftest.postgres`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tuning_samples import H100, baseline, columns_of_before, other_operators, timed, workload

from sparsegen.operators import ItemValues, SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning_db import schema_versions
from sparsegen.tuning_db.conversion import problem_columns
from sparsegen.tuning_db.layers import open_layers
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


def test_an_older_database_is_migrated_with_what_it_holds(postgres: str) -> None:
    import psycopg

    written = [timed(10.0), timed(20.0, workload(n=96)), *other_operators()]
    with schema(postgres, "sparsegen_old") as old:
        with Store.open(old) as store:
            store.add_all(written, [baseline(5.0)])
        with psycopg.connect(old, autocommit=True) as connection:
            for problem in dict.fromkeys(m.workload.problem for m in written):
                row = columns_of_before(problem) | {"today": problem_columns(problem)["digest"]}
                connection.execute(
                    "UPDATE problems SET fields = %(fields)s, digest = %(digest)s WHERE digest = %(today)s",
                    row,
                )
            connection.execute("ALTER TABLE probes DROP COLUMN called, DROP COLUMN task, DROP COLUMN context")
            connection.execute(
                "ALTER TABLE probes ADD CONSTRAINT uq_probes UNIQUE "
                "(problem_id, matrix_id, device_id, variant_id, measured_as, measured_at)"
            )
            connection.execute(f"UPDATE {schema_versions.VERSION_TABLE} SET version_num = '0006'")
        with Store.open(old) as store:
            assert store.found_schema == "0006"
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
