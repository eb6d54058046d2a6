"""Measurements that come while the database is still being opened are written when it is open."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tuning_samples import DIGEST, H100, MEASURED_RATES, START, timed, workload

from sparsegen.plan.variants import RenderedVariant
from sparsegen.tuning.loop.ledger import FOLLOW_SECONDS, Ledger
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import DeviceRates
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


def beside(store: Store) -> Ledger:
    """The ledger of a search that begins now, whose variants all count, beside others in the same database."""
    opened: Future[Store] = Future()
    opened.set_result(store)
    ledger = Ledger(workload(), H100, store, opened)
    candidates = [timed(1.0, tile_n=tile).variant.config for tile in (32, 64, 128)]
    rendered = cast(RenderedVariant, SimpleNamespace(digest=DIGEST))
    ledger.expect(cast(Space, SimpleNamespace(candidates=candidates)), lambda config: rendered)
    return ledger


def test_what_searches_beside_it_measure_is_taken_up_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        ledger = beside(store)
        own, other, foreign = (
            timed(10.0, tile_n=32),
            timed(9.0, at=1, tile_n=64),
            timed(1.0, at=2, tile_n=256),
        )
        ledger.record(own)
        store.add_all([other, foreign], [])
        assert ledger.follow() == {}, "the last look was just now"
        assert ledger.follow(at_once=True) == {other.variant.config: other}, (
            "not its own, nor another space's"
        )
        assert ledger.follow(at_once=True) == {}
        assert (ledger.counts.done, ledger.counts.resumed) == (1, 1)
        assert ledger.fastest == other
        assert ledger.is_tried(other.variant.config) and not ledger.is_tried(foreign.variant.config)


def test_another_time_of_what_it_tried_is_no_news(tmp_path: Path) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        ledger = beside(store)
        ledger.record(timed(10.0, tile_n=32))
        again = timed(8.0, at=5, tile_n=32)
        store.add_all([again], [])
        assert ledger.follow(at_once=True) == {}
        assert ledger.counts.resumed == 0
        assert ledger.fastest == again, "its time counts all the same"


def test_it_looks_again_when_the_last_look_is_long_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        ledger = beside(store)
        other = timed(9.0, tile_n=64)
        store.add_all([other], [])
        assert ledger.follow() == {}
        later = time.monotonic() + FOLLOW_SECONDS + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        assert ledger.follow() == {other.variant.config: other}


def test_rates_are_needed_where_no_database_knows_them(tmp_path: Path) -> None:
    nowhere, known = MemoryLayer([], []), MemoryLayer([], [], [DeviceRates(H100, MEASURED_RATES, START)])
    opened: Future[Store] = Future()
    assert Ledger(workload(), H100, nowhere, opened).needs_rates
    assert not Ledger(workload(), H100, known, opened).needs_rates
    rated = replace(H100, rates=MEASURED_RATES)
    assert not Ledger(workload(), rated, nowhere, opened).needs_rates
    assert not Ledger(workload(), rated, known, opened).needs_rates
