"""Searches on a Ray cluster of several nodes, whose GPUs are emulators: workers, nodes and the database are lost.

Needs Ray: make test-ray.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tuning_fakes
from engine_fakes import Recorder, require_whole, set_up, tasks
from patience import LONG
from postgres_server import own_or_skip

from sparsegen import backends
from sparsegen.errors import ConfigError, DeviceUnavailableError
from sparsegen.tuning.engines.dealing import deal
from sparsegen.tuning_db.store import Store

ray = pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
from ray.cluster_utils import Cluster  # noqa: E402

from sparsegen.tuning.engines import ray_cluster  # noqa: E402
from sparsegen.tuning.engines.ray_cluster import RayEngine  # noqa: E402

EMULATOR = backends.emulator_device()
LABEL = "sparsegen:emulator"
TOY_SECONDS = "0.1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes, of two GPUs and one, beside the head, which has none."""
    folder = tmp_path_factory.mktemp("ray")
    environment = {
        "TOY_TOOLCHAIN": str(folder / "toolchain"),
        "TOY_SECONDS": TOY_SECONDS,
        "SPARSEGEN_CACHE": str(folder / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
        try:
            started.add_node(num_cpus=1, num_gpus=2, resources={LABEL: 2})
            ray.init(started.address, log_to_driver=False, logging_level="ERROR")
            yield started
        finally:
            ray.shutdown()
            started.shutdown()


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tuning_fakes.install(monkeypatch.setattr)
    yield
    tuning_fakes.uninstall()


def whole(place: str | Path, count: int, recorder: Recorder) -> None:
    require_whole(place, count, recorder, model=EMULATOR)


def processes_of_searches() -> list[int]:
    """Ray's workers that have a search under way."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith(b"ray::run_search"):
                found.append(int(process.name))
    return found


def test_tasks_run_on_gpus_of_their_model(cluster: Any, tmp_path: Path) -> None:
    place, recorder = tmp_path / "t.db", Recorder()
    with closing(RayEngine(set_up(place))) as engine:
        assert engine.models == (EMULATOR,) and engine.capacity(EMULATOR) == 2
        outcomes = deal(tasks(4, model=EMULATOR), engine, watch=recorder)
        known = deal(tasks(4, model=EMULATOR), engine)
    assert all(o.found and o.found.result and o.attempts == 1 for o in outcomes), outcomes
    assert {o.where.split()[1] for o in outcomes} == {"emulator", "emulator:1"}
    assert all(o.found and o.found.known for o in known)
    whole(place, 4, recorder)
    with pytest.raises(DeviceUnavailableError, match="no 'nvidia-h100'; it has emulator"):
        RayEngine(set_up(place), models=["nvidia-h100"])


def test_a_killed_worker_loses_and_repeats_nothing(cluster: Any, tmp_path: Path) -> None:
    place = tmp_path / "t.db"
    recorder = Recorder(2, lambda number, where: os.kill(processes_of_searches()[0], signal.SIGKILL))
    with closing(RayEngine(set_up(place))) as engine:
        outcomes = deal(tasks(3, model=EMULATOR), engine, watch=recorder)
    assert sorted(o.attempts for o in outcomes) == [1, 1, 2], outcomes
    whole(place, 3, recorder)


def test_a_killed_node_loses_and_repeats_nothing(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=1, num_gpus=1, resources={LABEL: 1})
    place = tmp_path / "t.db"
    removed: list[bool] = []

    def remove(number: int, where: str) -> None:
        cluster.remove_node(node, allow_graceful=False)
        removed.append(True)

    recorder = Recorder(2, remove)
    with closing(RayEngine(set_up(place))) as engine:
        assert engine.capacity(EMULATOR) == 3
        outcomes = deal(tasks(5, model=EMULATOR), engine, watch=recorder)
        assert engine.capacity(EMULATOR) == 2
    assert removed and {o.error for o in outcomes} == {None}
    assert sorted(o.attempts for o in outcomes) == [1, 1, 1, 1, 2]
    whole(place, 5, recorder)


def test_a_restarted_database_loses_and_repeats_nothing(cluster: Any) -> None:
    with own_or_skip() as server:
        Store.open(server.url).close()
        restarted: list[bool] = []

        def restart(number: int, where: str) -> None:
            server.stop()
            time.sleep(1.0)  # searches measure on meanwhile, and wait with what they have
            server.start()
            restarted.append(True)

        recorder = Recorder(2, restart)
        with closing(RayEngine(set_up(server.url))) as engine:
            outcomes = deal(tasks(3, model=EMULATOR), engine, watch=recorder)
        assert restarted and {o.error for o in outcomes} == {None}
        whole(server.url, 3, recorder)


def test_a_stop_ends_the_searches_and_another_run_goes_on(cluster: Any, tmp_path: Path) -> None:
    place, stop = tmp_path / "t.db", threading.Event()
    recorder = Recorder(2, lambda number, where: stop.set())
    began = time.monotonic()
    with closing(RayEngine(set_up(place))) as engine:
        outcomes = deal(tasks(4, model=EMULATOR), engine, watch=recorder, stop=stop)
    assert time.monotonic() - began < LONG
    assert any(o.found and o.found.was_interrupted for o in outcomes)
    assert not any(o.found and not o.found.was_interrupted for o in outcomes)
    with closing(RayEngine(set_up(place))) as engine:
        deal(tasks(4, model=EMULATOR), engine, watch=recorder)
    whole(place, 4, recorder)


def test_a_file_is_not_for_several_hosts(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster.socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(ConfigError, match="--db postgresql://"):
        RayEngine(set_up(tmp_path / "t.db"))


def test_another_version_is_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "__version__", "0.0.1")
    with pytest.raises(ConfigError, match=r"and this is 0\.0\.1"):
        RayEngine(set_up(tmp_path / "t.db"))
