"""Searches on several devices of this host: dealt, killed, left out, stopped; nothing is lost or measured twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import engine_fakes
import pytest
import tuning_fakes
from engine_fakes import Recorder, devices, require_whole, set_up, tasks
from tuning_samples import A100, H100

from sparsegen.errors import ConfigError, SparsegenError
from sparsegen.tuning.engines import local
from sparsegen.tuning.engines.dealing import deal
from sparsegen.tuning.engines.local import LocalEngine


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOY_TOOLCHAIN", str(tmp_path / "toolchain"))
    monkeypatch.setenv("SPARSEGEN_CACHE", str(tmp_path / "cache"))
    tuning_fakes.install(monkeypatch.setattr)
    yield
    tuning_fakes.uninstall()


def kill(engine: LocalEngine) -> Recorder:
    """A watch that kills the process of the first search that has measured something."""

    def do(number: int, where: str) -> None:
        worker = next(w for w in engine._workers if f"fake:{w.device.index}" == where)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)

    return Recorder(2, do)


def test_searches_are_dealt_to_all_devices(tmp_path: Path) -> None:
    place, recorder = tmp_path / "t.db", Recorder()
    with closing(LocalEngine(devices(2), set_up(place))) as engine:
        outcomes = deal(tasks(4), engine, watch=recorder)
        again = deal(tasks(4), engine)
    assert all(o.found and o.found.result and o.attempts == 1 for o in outcomes)
    assert {where for (where,) in recorder.where.values()} == {"fake:0", "fake:1"}
    assert all(o.found and o.found.result is None and o.found.known == engine_fakes.TRIALS for o in again)
    require_whole(place, 4, recorder)


def test_a_killed_process_loses_and_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_SECONDS", "0.05")
    place = tmp_path / "t.db"
    with closing(LocalEngine(devices(2), set_up(place))) as engine:
        recorder = kill(engine)
        outcomes = deal(tasks(3), engine, watch=recorder)
    assert sorted(o.attempts for o in outcomes) == [1, 1, 2]
    require_whole(place, 3, recorder)


def test_a_device_that_loses_every_search_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOY_LOST_DEVICE", "1")
    monkeypatch.setenv("TOY_SECONDS", "0.05")
    place, recorder = tmp_path / "t.db", Recorder()
    with closing(LocalEngine(devices(2), set_up(place))) as engine:
        outcomes = deal(tasks(3), engine, watch=recorder)
        assert engine.capacity(tuning_fakes.DEVICE) == 1
    assert all(o.found and o.where == "fake:0" for o in outcomes)
    assert "fake:1 is left out: it lost its search 2 times" in caplog.text
    require_whole(place, 3, recorder)

    monkeypatch.setenv("TOY_LOST_DEVICE", "0")
    with (
        closing(LocalEngine(devices(1), set_up(tmp_path / "other.db"))) as engine,
        pytest.raises(SparsegenError, match="SIGKILL"),
    ):
        deal(tasks(3), engine)
    assert "fake:0 is left out: it lost its search 6 times" in caplog.text


def test_a_silent_process_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "SILENT_SECONDS", 6.0)
    monkeypatch.setenv("TOY_SECONDS", "0.05")
    stopped: list[int] = []
    place = tmp_path / "t.db"
    with closing(LocalEngine(devices(1), set_up(place))) as engine:

        def do(number: int, where: str) -> None:
            pid = engine._workers[0].pid
            assert pid is not None
            stopped.append(pid)
            os.kill(pid, signal.SIGSTOP)

        recorder = Recorder(2, do)
        (outcome,) = deal(tasks(1), engine, watch=recorder)
    assert stopped and outcome.attempts == 2
    require_whole(place, 1, recorder)


def test_a_stop_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_SECONDS", "0.2")
    place, stop = tmp_path / "t.db", threading.Event()
    recorder = Recorder(2, lambda number, where: stop.set())
    began = time.monotonic()
    with closing(LocalEngine(devices(2), set_up(place))) as engine:
        outcomes = deal(tasks(4), engine, watch=recorder, stop=stop)
    assert time.monotonic() - began < local.SILENT_SECONDS
    interrupted = [o for o in outcomes if o.found is not None]
    assert len(interrupted) == 2 and all(o.found and o.found.was_interrupted for o in interrupted)
    monkeypatch.setenv("TOY_SECONDS", "0")
    with closing(LocalEngine(devices(2), set_up(place))) as engine:
        deal(tasks(4), engine)
    require_whole(place, 4, recorder)


def test_a_search_begins_only_where_a_device_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one device"):
        LocalEngine([], set_up(tmp_path / "t.db"))


def test_several_searches_may_share_a_device(tmp_path: Path) -> None:
    place, recorder = tmp_path / "t.db", Recorder()
    with closing(LocalEngine(devices(1), set_up(place), searches=2)) as engine:
        assert engine.capacity(tuning_fakes.DEVICE) == 2
        deal(tasks(2), engine, watch=recorder)
    assert recorder.told[:2] == ["task 0 began", "task 1 began"]
    require_whole(place, 2, recorder)


def test_a_device_that_loses_its_searches_is_left_out_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "_Worker", lambda _, device: SimpleNamespace(device=device))
    first, second, other = H100, replace(H100, index=1), replace(A100, index=2)
    engine = local.LocalEngine([first, second, other], set_up(tmp_path / "t.db"))
    of = {worker.device.index: worker for worker in engine._workers}

    def ends(index: int, *, times: int = 1, was_lost: bool = True) -> tuple[int, int]:
        for _ in range(times):
            engine._free.remove(of[index])
            engine._ended(of[index], was_lost)
        return engine.capacity(H100), engine.capacity(A100)

    assert ends(0, times=local.MOST_LOSSES - 1) == (2, 1)
    assert ends(0, was_lost=False) == (2, 1), "in a row"
    assert ends(0, times=local.MOST_LOSSES) == (1, 1)
    assert ends(1, times=local.MOST_LOSSES_OF_LAST - 1) == (1, 1), (
        "the last one of a model gets more patience"
    )
    assert ends(1) == (0, 1)
    assert ends(1) == (0, 1)
    assert caplog.text.count("is left out") == 2, "each said once"
