"""Searches in several processes: kills lose nothing, and equal searches share what they measure."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import LONG, is_running, wait_until
from toy_searches import FAKES, WORKLOAD, children, recorded
from tuning_fakes import DEVICE, tune_toy

from sparsegen.tuning_db.records import Outcome
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("toy")


def start(database: Path, trials: int, seconds: float = 0.0) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TOY_SECONDS": str(seconds), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(FAKES), str(database), str(trials)], env=environment)


def test_kill_9_loses_nothing_and_leaves_no_process(store: Store, tmp_path: Path) -> None:
    process = start(tmp_path / "tuning.db", trials=12, seconds=0.2)
    wait_until(lambda: len(recorded(store)) >= 3)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.wait()
    wait_until(lambda: not any(is_running(pid) for pid in workers))
    kept = len(recorded(store))
    assert 3 <= kept < 12
    result = tune_toy(store, tmp_path / "toolchain", trials=12)
    assert result.counts.resumed == kept and result.counts.done == 12 - kept


def test_two_tuners_share_one_database(store: Store, tmp_path: Path) -> None:
    both = [start(tmp_path / "tuning.db", trials=12, seconds=0.1) for _ in range(2)]
    assert [p.wait(LONG) for p in both] == [0, 0]
    measurements = recorded(store)
    assert {m.outcome for m in measurements} == {Outcome.OK}
    assert len(measurements) == len({m.variant for m in measurements}) == 12, (
        "each is measured by one of them"
    )
    assert store.winner(WORKLOAD, DEVICE) is not None
    assert not list((tmp_path / "cache" / "locks").glob("search-*"))


def test_what_a_killed_search_was_trying_is_tried_by_its_equal(store: Store, tmp_path: Path) -> None:
    killed = start(tmp_path / "tuning.db", trials=12, seconds=0.3)
    wait_until(lambda: len(recorded(store)) >= 1)
    other = start(tmp_path / "tuning.db", trials=12, seconds=0.1)
    wait_until(lambda: len(recorded(store)) >= 5)
    killed.kill()
    killed.wait()
    assert other.wait(LONG) == 0
    measurements = recorded(store)
    assert len(measurements) == len({m.variant for m in measurements}) == 12


def test_a_search_waits_for_the_one_variant_that_its_equal_measures(store: Store, tmp_path: Path) -> None:
    both = [start(tmp_path / "tuning.db", trials=1, seconds=0.3) for _ in range(2)]
    assert [p.wait(LONG) for p in both] == [0, 0]
    assert len(recorded(store)) == 1


def test_it_runs_in_a_thread(store: Store, tmp_path: Path) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(tune_toy(store, tmp_path, trials=2)))
    thread.start()
    thread.join(LONG)
    assert results and results[0].counts.done == 2
