"""What is recorded while the database is still being opened is written when it is open."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

from tuning_samples import H100, timed, workload

from sparsegen.tuning.loop.ledger import Ledger
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.store import Store


def test_records_wait_for_the_database_and_not_the_other_way_round(tmp_path: Path) -> None:
    opened: Future[Store] = Future()
    ledger = Ledger(workload(), H100, MemoryLayer([], []), opened)
    ledger.record(timed(10.0))
    assert ledger.fastest == timed(10.0) and ledger.counts.done == 1
    with Store.open(tmp_path / "tuning.db") as store:
        opened.set_result(store)
        ledger.record(timed(9.0, at=1, tile_n=128))
        assert store.all_measurements() == [timed(10.0), timed(9.0, at=1, tile_n=128)]
        ledger.flush()
        assert len(store.all_measurements()) == 2
