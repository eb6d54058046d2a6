"""Probes and checks: kept beside the measurements, and never taken for one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuning_samples import A100, DIGEST, H100, START, baseline, checked, probe, timed, workload

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.tuning_db.exchange import export_json, load
from sparsegen.tuning_db.forgetting import Selection
from sparsegen.tuning_db.layers import Layers, MemoryLayer
from sparsegen.tuning_db.records import Outcome, Task
from sparsegen.tuning_db.sqlite_reader import open_sqlite
from sparsegen.tuning_db.store import Store

OTHER = workload(n=96)


def test_both_readers_and_memory_say_the_same(tmp_path: Path) -> None:
    model = replace(probe(9.0, 12.0, at=1), task=Task.MODEL, context=DIGEST)
    probes = [probe(10.0, 8.0), model, probe(5.0, 4.0, OTHER)]
    checks = [checked(), checked(Outcome.WRONG, tile_n=32, at=1)]
    with Store.open(tmp_path / "tuning.db") as store:
        for one in probes:
            store.add_probe(one)
        for check in (*checks, checks[0]):
            store.add_check(check)
        reader = open_sqlite(tmp_path / "tuning.db")
        assert reader is not None
        for layer in (store, reader, MemoryLayer([], [], probes=probes, checks=checks)):
            assert layer.probes(workload(), H100) == probes[:2] and not layer.probes(workload(), A100)
            assert layer.failed_checks(H100) == checks[1:] and not layer.failed_checks(A100)
            assert layer.is_verified(H100, "580.1", DIGEST)
            assert not layer.is_verified(H100, "581.0", DIGEST) and not layer.is_verified(
                A100, "580.1", DIGEST
            )
            assert not layer.is_verified(H100, "580.1", "cd" * 32)
            assert not layer.measurements(workload(), H100) and not layer.list_workloads()
        assert store.all_checks() == checks, "the same check is recorded once"
        reader.close()


def test_a_measurement_verifies_by_its_own_driver_alone(tmp_path: Path) -> None:
    known, unknown = replace(timed(5.0), driver="580.1"), timed(6.0, digest="cd" * 32, at=1)
    with Store.open(tmp_path / "tuning.db") as store:
        store.add_all([known, unknown], [])
        for layer in (store, MemoryLayer([known, unknown], [])):
            assert layer.is_verified(H100, "580.1", DIGEST) and not layer.is_verified(H100, "581.0", DIGEST)
            assert not layer.is_verified(H100, "", "cd" * 32), "nobody knows by which driver"


def test_they_hide_no_measurement_of_a_layer_below() -> None:
    of = workload()
    own = MemoryLayer([], [], probes=[probe(10.0, 8.0)], checks=[checked()])
    layers = Layers([own, MemoryLayer([timed(7.0)], [baseline(9.0)])])
    assert choose(of, H100, layers).how is How.EXACT
    assert layers.probes(of, H100) and layers.is_verified(H100, "580.1", DIGEST)


def test_an_export_leaves_them_where_they_were_made(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.add_probe(probe(10.0, 8.0))
        store.add_check(checked())
        text, left_out = export_json(store)
    assert not load(text, "export").measurements and left_out == 0


def test_forgetting_takes_them_too(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        store.add_probe(probe(10.0, 8.0))
        store.add_probe(probe(5.0, 4.0, OTHER))
        store.add_check(checked())
        store.add_check(checked(Outcome.WRONG, tile_n=32, at=1))
        store.forget(Selection(failed_only=True))
        assert [c.outcome for c in store.all_checks()] == [Outcome.OK] and len(store.all_probes()) == 2
        store.forget(Selection(family="bcsr_spmm"))
        assert len(store.all_probes()) == 2
        store.forget(Selection(family="csr_spmm"))
        assert not store.all_probes() and not store.all_checks()
        store.add_probe(replace(probe(10.0, 8.0), measured_at=START))
        assert len(store.all_probes()) == 1
