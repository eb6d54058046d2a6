"""Division of a run's tests among several processes (pytest-xdist).

A file's tests stay in one process, as they share fixtures. A variant of the contract tests, an example and a notebook
go by themselves, and what is expected to take longest comes first, so that all processes end at about the same time. On
a GPU those that measure time are in one process, one after another. On a machine with several GPUs, each process begins
its list of them with another one.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # gw0, gw1, … where there are several processes
IS_WORKER = bool(WORKER)
DISTRIBUTION = "loadscope"  # what --dist says
VISIBLE = "CUDA_VISIBLE_DEVICES"
LIBRARY_THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")  # has a folder for each, before anything asks the driver
SPREAD = (  # files whose tests are dealt out one by one
    "test_contract.py",
    "test_contract_gpu.py",
    "test_examples.py",
    "test_network_gpu.py",
    "test_notebooks.py",
    "test_torch_examples.py",
)
EXPECTED = {("long",): 3.0, ("slow", "torch"): 2.0, ("slow",): 0.3}  # CPU seconds of a test, by its marks
LONGEST = {"test_notebooks.py": 20.0, "test_torch_examples.py": 20.0}  # by their files
QUICK = 0.01  # of others
TIMED = (  # files whose tests measure time where there is a GPU
    "test_bench_gpu.py",
    "test_clock.py",
    "test_operator_gpu.py",
    "test_torch_gpu.py",
    "test_torch_in_situ.py",
)


def scope_of(test: str, root: Path, *, has_gpu: bool) -> str:
    """Returns the group of tests that stays in one process with a test, given by pytest's name relative to ``root``."""
    file, _, name = test.partition("::")
    if _file_of(test) in SPREAD and "[" in name and (has_gpu or not _needs_gpu(root / file)):
        return test
    return "timed" if has_gpu and _file_of(test) in TIMED else file


def _file_of(test: str) -> str:
    """The name of a test's file, by pytest's name of the test."""
    return Path(test.partition("::")[0]).name


def heaviest_first(items: list[pytest.Item], root: Path, *, has_gpu: bool) -> None:
    """Sort the tests by what their groups are expected to take; those of a group stay in order."""
    groups = {item.nodeid: scope_of(item.nodeid, root, has_gpu=has_gpu) for item in items}
    expected: dict[str, float] = defaultdict(float)
    for item in items:
        by_marks = (s for marks, s in EXPECTED.items() if all(map(item.get_closest_marker, marks)))
        expected[groups[item.nodeid]] += LONGEST.get(_file_of(item.nodeid)) or next(by_marks, QUICK)
    items.sort(key=lambda item: -expected[groups[item.nodeid]])


def visible_devices(worker: str, listed: str | None, count: int) -> str | None:
    """Returns the value for a process's CUDA_VISIBLE_DEVICES; None if it should stay as it is.

    Args:
        worker: xdist's name of the process, gw0, gw1, …; empty where there is one alone.
        listed: the variable's present value; None if it is not set.
        count: GPUs of the machine.
    """
    devices = [str(number) for number in range(count)] if listed is None else listed.split(",")
    if not worker or len(devices) < 2:
        return None
    first = int(worker.removeprefix("gw")) % len(devices)
    return ",".join(devices[first:] + devices[:first])


def share_out_cores(environment: MutableMapping[str, str]) -> None:
    """Have libraries compute in one thread in each of several processes, which begin with this environment: more
    threads than cores wait for each other.
    """
    for name in LIBRARY_THREADS:
        environment.setdefault(name, "1")


def share_out_devices() -> None:
    """Have this process use another GPU than its neighbours; before anything asks the driver for devices."""
    count = len(list(DRIVER_GPUS.iterdir())) if DRIVER_GPUS.is_dir() else 0
    shared = visible_devices(WORKER, os.environ.get(VISIBLE), count)
    if shared is not None:
        os.environ[VISIBLE] = shared


@cache
def _needs_gpu(file: Path) -> bool:
    return "pytest.mark.gpu" in file.read_text()


def scheduler(config: pytest.Config, log: Any, *, has_gpu: bool) -> Any:
    """Makes xdist's scheduler with these scopes; its own marks for groups are lost on pytest 9.2.

    The test at which a process died has failed, and the others go on: by xdist's own scheduler the next process would
    get that test again, or wait for ever. A process that has not said yet which tests it found gets none until then.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid, config.rootpath, has_gpu=has_gpu)

        def _assign_work_unit(self, node: Any) -> None:
            if node in self.registered_collections:
                super()._assign_work_unit(node)

        def remove_node(self, node: Any) -> str | None:
            work = self.assigned_work[node]
            unfinished = [
                (unit, test) for unit in work.values() for test, is_done in unit.items() if not is_done
            ]
            for unit, test in unfinished[:1]:
                unit[test] = True
            self.assigned_work[node] = {scope: unit for scope, unit in work.items() if not all(unit.values())}
            super().remove_node(node)
            return unfinished[0][1] if unfinished else None

        def schedule(self) -> None:
            is_new_here = self.collection is not None  # a process in the place of one that died
            super().schedule()
            # A process begins a test when it knows of another, or that there is none.
            for node in self.nodes if is_new_here else ():
                self._reschedule(node)

    return FilesTogether(config, log)
