"""Several processes share out tests by files."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sharing import (
    DISTRIBUTION,
    SPREAD,
    TIMED,
    heaviest_first,
    scheduler,
    scope_of,
    share_out_cores,
    visible_devices,
)

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CONFTEST = """
import os
from pathlib import Path
from sharing import scheduler

def pytest_xdist_make_scheduler(config, log):
    return scheduler(config, log, has_gpu=False)

def pytest_runtest_call(item):
    with Path("ran").open("a") as file:
        file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {item.path.name} {item.name}\\n")
"""


@pytest.mark.parametrize(
    ("test", "has_gpu", "scope"),
    [
        ("tests/test_api.py::test_some[1]", False, "tests/test_api.py"),
        ("tests/test_api.py::test_some", True, "tests/test_api.py"),
        ("tests/test_contract.py::test_a[uspmm]", False, "tests/test_contract.py::test_a[uspmm]"),
        ("tests/test_contract.py::test_a", False, "tests/test_contract.py"),
        ("tests/test_contract_gpu.py::test_a[uspmm]", False, "tests/test_contract_gpu.py"),
        ("tests/test_contract_gpu.py::test_a[uspmm]", True, "tests/test_contract_gpu.py::test_a[uspmm]"),
        ("tests/test_network_gpu.py::test_a[0]", True, "tests/test_network_gpu.py::test_a[0]"),
        ("tests/plan/test_packing.py::test_it[cuda]", True, "tests/plan/test_packing.py"),
        ("tests/measure/test_clock.py::test_it", False, "tests/measure/test_clock.py"),
        ("tests/measure/test_clock.py::test_it", True, "timed"),
        ("tests/bench/test_bench_gpu.py::test_it", True, "timed"),
    ],
)
def test_a_file_stays_together(test: str, has_gpu: bool, scope: str) -> None:
    assert scope_of(test, ROOT, has_gpu=has_gpu) == scope


def test_what_takes_longest_comes_first() -> None:
    def item(test: str, *marks: str) -> Any:
        return SimpleNamespace(nodeid=test, get_closest_marker=lambda name: name in marks)

    quick = [item(f"tests/test_a.py::test_{i}") for i in range(20)]
    slow = [item(f"tests/test_b.py::test_{i}", "slow") for i in range(3)]
    long = item("tests/test_c.py::test", "slow", "long")
    compiled = item("tests/test_d.py::test", "slow", "torch")
    notebook = item("tests/examples/test_notebooks.py::test[a]", "slow", "torch")
    items = [*quick[:10], *slow, long, compiled, *quick[10:], notebook]
    heaviest_first(items, ROOT, has_gpu=False)
    assert items == [notebook, long, compiled, *slow, *quick]


def test_the_makefile_shares_out_by_them() -> None:
    assert f"--dist {DISTRIBUTION} $(KERNELS" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("worker", "listed", "count", "expected"),
    [
        ("gw0", None, 2, "0,1"),
        ("gw1", None, 2, "1,0"),
        ("gw5", None, 4, "1,2,3,0"),
        ("gw1", "3,5", 8, "5,3"),
        ("gw1", "GPU-a,GPU-b", 2, "GPU-b,GPU-a"),
        ("gw1", "2", 4, None),
        ("gw1", "", 4, None),
        ("gw1", None, 1, None),
        ("gw1", None, 0, None),
        ("", None, 2, None),
    ],
)
def test_processes_begin_with_different_devices(
    worker: str, listed: str | None, count: int, expected: str | None
) -> None:
    assert visible_devices(worker, listed, count) == expected


def test_two_processes_have_a_file_each(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n{CONFTEST}")
    for name in ("test_one.py", "test_two.py"):
        (tmp_path / name).write_text("".join(f"def test_{i}(): pass\n" for i in range(8)))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", DISTRIBUTION]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    workers = defaultdict(set)
    ran = (tmp_path / "ran").read_text().splitlines()
    for worker, file, _ in map(str.split, ran):
        workers[file].add(worker)
    assert len(ran) == 16 and {len(found) for found in workers.values()} == {1}


def test_the_files_named_are_there() -> None:
    assert {path.name for path in TESTS.rglob("test_*.py")}.issuperset((*SPREAD, *TIMED))


class Process:
    """A process as the scheduler knows it: an object with a name, which it tells what to run."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, tests: Sequence[int]) -> None:
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def test_processes_that_still_look_for_their_tests_are_passed_over() -> None:
    """Two die one after the other: the first one's substitute has found its tests before the second one's has."""
    config: Any = SimpleNamespace(
        rootpath=ROOT,
        getvalue={"tx": ["3*popen"]}.__getitem__,
        option=SimpleNamespace(loadscopereorder=True),
    )
    tests = [f"tests/test_{name}.py::test_it" for name in ("api", "errors", "figures", "words", "tables")]
    plan = scheduler(config, None, has_gpu=True)
    first, second, third, instead_of_first, instead_of_second = map(Process, "12345")
    for process in (first, second, third):
        plan.add_node(process)
        plan.add_node_collection(process, tests)
    plan.schedule()
    assert plan.remove_node(first) == tests[first.given[0]]
    plan.add_node(instead_of_first)
    assert plan.remove_node(second) == tests[second.given[0]]
    plan.add_node(instead_of_second)
    plan.add_node_collection(instead_of_first, tests)
    plan.schedule()
    assert not instead_of_second.given
    for number in third.given:
        plan.mark_test_complete(third, number)
    plan.add_node_collection(instead_of_second, tests)
    plan.schedule()
    for process in (third, instead_of_first, instead_of_second):
        for number in process.given:
            if not plan.assigned_work[process][tests[number].partition("::")[0]][tests[number]]:
                plan.mark_test_complete(process, number)
    ran = [*third.given, *instead_of_first.given, *instead_of_second.given]
    assert sorted([first.given[0], second.given[0], *ran]) == [0, 1, 2, 3, 4], "each once"
    assert plan.tests_finished


def test_processes_compute_in_one_thread_unless_told_otherwise() -> None:
    environment = {"OMP_NUM_THREADS": "3"}
    share_out_cores(environment)
    assert environment == {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
