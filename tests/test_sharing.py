"""Several processes share out tests by files."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sharing import DISTRIBUTION, scheduler, scope_of, visible_devices

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
        ("tests/measure/test_clock.py::test_it", True, "gpu"),
    ],
)
def test_a_file_stays_together(test: str, has_gpu: bool, scope: str) -> None:
    assert scope_of(test, ROOT, has_gpu=has_gpu) == scope


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


class Process:
    """The part of a process of xdist that its scheduler calls."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[int] = []
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def test_processes_die_together() -> None:
    """One that takes a dead one's place may have collected no tests yet when another has."""
    tests = [f"tests/test_{file}.py::test_{i}" for file in ("api", "render", "errors") for i in range(4)]
    option = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda name: ["popen", "popen"], rootpath=ROOT, option=option)
    shared = scheduler(config, None, has_gpu=False)
    first, second, third, fourth = (Process() for _ in range(4))
    for node in (first, second):
        shared.add_node(node)
        shared.add_node_collection(node, tests)
    shared.schedule()
    dead = [shared.remove_node(node) for node in (first, second)]
    for node in (third, fourth):
        shared.add_node(node)
    for node in (third, fourth):
        shared.add_node_collection(node, tests)
        shared.schedule()
        assert node.given
    given = [tests[number] for number in third.given + fourth.given]
    assert len({*given, *dead}) == len(given) + 2, "no test twice, and none again at which a process died"
