"""The ring of GPU tests: turns, a budget, a line for each family, and an end to what lost the device or hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu_ring
import pytest
from gpu_ring import LOST, NOT_RUN, Ledger, Turns, group_of, in_turns
from patience import LONG, patience
from sharing import DISTRIBUTION

from sparsegen import backends
from sparsegen.errors import LaunchError
from sparsegen.kernels import families
from sparsegen.testing.cover import short_ring
from sparsegen.testing.variants import Variant, sample

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FILE = f"tests/{gpu_ring.CONTRACT}"
FAMILIES = ("csr_spmm", "mma_spmm")
CONFTEST = """
import gpu_ring, pytest
from sharing import scheduler

def pytest_addoption(parser):
    parser.addoption("--gpu-budget", type=float, default=0.0)

def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    gpu_ring.GRACE, gpu_ring.PROGRESS = 0.0, 0.0
    gpu_ring.register(config, config.option.gpu_budget)

def pytest_xdist_make_scheduler(config, log):
    return scheduler(config, log, has_gpu=True)
"""
VARIANTS = """
import pytest
from gpu_ring import LOST

pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("size", (49, 256, 1))
@pytest.mark.parametrize("family", ("csr_spmm", "mma_spmm"))
def test_heuristics_at_size(request, family, size):
    if (family, size) == ("mma_spmm", 49):
        assert False, "it is wrong"
    if (family, size) == ("csr_spmm", 256):
        request.config.stash[LOST] = "an illegal address"
        assert False, "it faults"
"""
HANGING = """
import time
import pytest

pytestmark = pytest.mark.gpu

def test_that_never_ends():
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("test", "group"),
    [
        (f"{FILE}::test_adversarial_matrices[csr_spmm-float32-row-n8-tile_n=16]", "csr_spmm"),
        (f"{FILE}::test_heuristics_at_size[49-mma_spmm]", "mma_spmm"),
        ("tests/plan/test_packing.py::test_it[cuda-csr_spmm]", "plan/test_packing.py"),
    ],
)
def test_tests_are_counted_by_family_or_file(test: str, group: str) -> None:
    assert group_of(test) == group


def collected(name: str, **params: Any) -> Any:
    file, _, _ = name.partition("::")
    return SimpleNamespace(path=Path(file), nodeid=name, callspec=SimpleNamespace(params=params))


def contract_items() -> list[Any]:
    variants = [v for family in FAMILIES for v in sample(families()[family])]
    return [
        *(collected(f"{FILE}::test_adversarial_matrices[{v}]", variant=v) for v in variants),
        *(
            collected(f"{FILE}::test_heuristics_at_size[{size}-{family}]", family=family, size=size)
            for size in (1, 49, 256)
            for family in FAMILIES
        ),
    ]


def test_every_family_has_its_turn() -> None:
    other = collected("tests/plan/test_packing.py::test_it")
    items = contract_items()
    ordered = in_turns([*items, other])
    assert ordered[0] is other and sorted(map(id, ordered)) == sorted(map(id, [*items, other]))
    assert [group_of(item.nodeid) for item in ordered[1:9]] == [*FAMILIES] * 4
    sizes = [item.callspec.params.get("size") for item in ordered[1:9]]
    assert sizes == [None, None, 49, 49, None, None, 256, 256]
    for family in FAMILIES:
        turns: list[Variant] = [
            item.callspec.params["variant"]
            for item in ordered[1:]
            if group_of(item.nodeid) == family and "variant" in item.callspec.params
        ]
        short = short_ring(families()[family])
        assert tuple(turns[: len(short)]) == short and len(turns) > len(short)


@pytest.mark.parametrize("fault", ["", "an illegal instruction"])
def test_a_failure_that_lost_the_device_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize() -> None:
        if fault:
            raise LaunchError(fault)

    executor = SimpleNamespace(activate=lambda: None, synchronize=synchronize)
    monkeypatch.setattr(backends, "gpu_devices", lambda: ["a GPU"])
    monkeypatch.setattr(gpu_ring, "shared_executor", lambda device: executor)
    for failed in (False, True):
        item: Any = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()))
        report: Any = SimpleNamespace(failed=failed)
        hook = Turns(None).pytest_runtest_makereport(item)
        next(hook)
        with pytest.raises(StopIteration) as ended:
            hook.send(report)
        assert ended.value.value is report and item.config.stash.get(LOST, "") == (fault if failed else "")


def test_no_test_begins_after_the_budget() -> None:
    with pytest.raises(pytest.skip.Exception, match=NOT_RUN):
        Turns(time.monotonic()).pytest_runtest_setup()
    Turns(time.monotonic() + LONG).pytest_runtest_setup()
    Turns(None).pytest_runtest_setup()


def test_a_table_of_outcomes_and_seconds() -> None:
    ledger = Ledger(None)
    tests = {name: f"{FILE}::test_heuristics_at_size[{name}]" for name in ("1-csr_spmm", "49-csr_spmm")}
    left_out = "tests/plan/test_packing.py::test_left_out"
    skipped = "tests/plan/test_packing.py::test_skipped"
    ledger.pytest_xdist_node_collection_finished([*tests.values(), left_out, skipped])

    def report(test: str, when: str, outcome: str, why: str = "") -> Any:
        reason = ("file", 1, f"Skipped: {why}") if why else None
        return SimpleNamespace(
            nodeid=test, when=when, outcome=outcome, duration=0.5, skipped=bool(why), longrepr=reason
        )

    for when in ("setup", "call", "teardown"):
        ledger.pytest_runtest_logreport(report(tests["1-csr_spmm"], when, "passed"))
    for when, outcome in (("setup", "passed"), ("call", "passed"), ("teardown", "failed")):
        ledger.pytest_runtest_logreport(report(tests["49-csr_spmm"], when, outcome))
    ledger.pytest_runtest_logreport(report(left_out, "setup", "skipped", NOT_RUN))
    ledger.pytest_runtest_logreport(report(skipped, "setup", "skipped", "another reason"))
    assert "3 of 4 tests, 1 failed; now csr_spmm, plan/test_packing.py" in ledger.progress()
    rows = [line.split() for line in ledger.lines()]
    assert rows[0] == ["GPU", "tests", "passed", "failed", "skipped", "not", "run", "seconds"]
    assert rows[1:] == [
        ["csr_spmm", "1", "1", "0", "0", "3.0"],
        ["plan/test_packing.py", "0", "0", "1", "1", "1.0"],
        ["all", "1", "1", "1", "1", "4.0"],
    ]


def ring_in(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """The exit status and the lines of the ring over the test files of a folder, in two processes."""
    (folder / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n{CONFTEST}")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", DISTRIBUTION, "-m", "gpu"]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=LONG
    )
    return done.returncode, done.stdout.splitlines()


def numbers(lines: list[str], group: str) -> list[str]:
    return next(line for line in reversed(lines) if line.startswith(f"{group} ")).split()[1:5]


def test_a_process_that_loses_the_device_is_replaced(tmp_path: Path) -> None:
    (tmp_path / gpu_ring.CONTRACT).write_text(VARIANTS)
    status, lines = ring_in(tmp_path)
    assert status == 1
    assert numbers(lines, "csr_spmm") == ["2", "1", "0", "0"]
    assert numbers(lines, "mma_spmm") == ["2", "1", "0", "0"]
    assert lines[-1].split()[:5] == ["all", "4", "2", "0", "0"]
    assert any("it faults" in line for line in lines), (
        "xdist tells of the crash, and the test's own words stay"
    )


def test_what_hangs_is_ended_and_everything_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / gpu_ring.CONTRACT).write_text(VARIANTS)
    status, lines = ring_in(tmp_path, "--gpu-budget", str(patience(10)))
    assert status == 2
    assert numbers(lines, "test_hanging.py") == ["0", "0", "0", "1"]
    failed = lines.index(f"FAILED {gpu_ring.CONTRACT}::test_heuristics_at_size[csr_spmm-256]")
    assert any("it faults" in line for line in lines[failed : failed + 30]), "told when it failed"
    assert lines[-1].startswith("all ")


def test_the_makefile_has_the_ring() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert (
        f"$(PYTEST) --maxprocesses 24 -m {gpu_ring.RING} --gpu-budget $(GPU_SECONDS) $(GPU_TESTS)\n"
        in makefile
    )
