"""Notices what tests take in CPU time, and which of them compile or start processes.

`pytest --record-costs` keeps it in costs.json. CPU time of the process and of the child processes that it waited for is
much the same on an idle and on a busy machine, which wall clock is not. Imports are charged to no test: the recorder
does them beforehand. In the first ring a test that compiles or starts a process after all is skipped at that point.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from costs import SLOW, Costs, name_of

import sparsegen
from sparsegen.backends.cuda.compile_servers import CompileServers
from sparsegen.backends.cuda.compiler import CudaToolchain
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import PackageMissingError

STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
)  # audit events
COMPILERS: tuple[tuple[type, str], ...] = (
    (EmulatorToolchain, "compile"),
    (EmulatorToolchain, "compile_sanitized"),
    (EmulatorToolchain, "make_ready"),
    (CudaToolchain, "compile"),
    (CompileServers, "compile"),
)
REFUSAL = (
    "compiles or starts processes, so that it is not of the fast ring: record it with pytest --record-costs"
)
MUCH = 10 * SLOW  # CPU seconds: more than a test of the first ring takes that makes a shared fixture
PROPERTY = (
    "sparsegen costs"  # what the report of a test's end carries from one of several processes to the first
)


class Watch:
    """Counts compiles, of kernels that lie in the cache too, and processes that this process starts.

    Args:
        refuses: tests are skipped where they do either (in the main thread: others may wait for what a thread does).
    """

    def __init__(self, *, refuses: bool) -> None:
        self.seen = 0
        self.in_test = False
        self._refuses = refuses

    def install(self) -> None:
        """For the rest of the process."""
        sys.addaudithook(self._audit)
        for owner, name in COMPILERS:
            setattr(owner, name, self._noticing(getattr(owner, name)))

    def notice(self) -> None:
        self.seen += 1
        if self._refuses and self.in_test and threading.current_thread() is threading.main_thread():
            pytest.skip(REFUSAL)

    def _audit(self, event: str, _: Any) -> None:
        if event in STARTS:
            self.notice()

    def _noticing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def noticed(*args: Any, **kwargs: Any) -> Any:
            self.notice()
            return method(*args, **kwargs)

        return noticed


class Observer:
    """Puts on the last report of each test its CPU seconds and whether it compiles or starts processes.

    A fixture that several tests share is made in the first of them: all count as what it does.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._starting: set[tuple[str, str]] = (
            set()
        )  # shared fixtures: where they are declared, and their name

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._before = (cpu_seconds(), self._watch.seen)
        self._watch.in_test = True
        try:
            return (yield)
        finally:
            self._watch.in_test = False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        seen = self._watch.seen
        try:
            return (yield)
        finally:
            if self._watch.seen > seen and fixturedef.scope != "function":
                self._starting.add((fixturedef.baseid, fixturedef.argname))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "teardown" and has_a_cost(item):
            seconds, seen = self._before
            starts = self._watch.seen > seen or any(
                item.nodeid.startswith(where) and name in getattr(item, "fixturenames", ())
                for where, name in self._starting
            )
            item.user_properties.append((PROPERTY, (name_of(item), cpu_seconds() - seconds, starts)))
        return (yield)


class Found:
    """Findings of `Observer` on each test, in this process or in others."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[float, bool]] = {}  # CPU seconds; whether it compiles or starts processes

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                test, seconds, starts = value
                self.tests[test] = (seconds, starts)


class Recorder(Found):
    """Takes what was found into costs.json when the run ends.

    Args:
        whole: it is a run of all tests.
    """

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self._whole = whole

    def pytest_sessionfinish(self) -> None:
        Costs.read().updated(self.tests, whole=self._whole).write()


class Unrecorded(Found):
    """Names the tests that ran in the first ring and do not belong there, as they are not recorded."""

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> Iterator[str]:
        found = {name: seconds for name, (seconds, starts) in self.tests.items() if starts or seconds >= MUCH}
        if found:
            files = " ".join(sorted({f"tests/{name.partition('::')[0]}" for name in found}))
            yield (
                f"{len(found)} tests are not of the fast ring and took {sum(found.values()):.1f} s of CPU time: "
                f"record them with pytest --record-costs {files}"
            )
            yield from (
                f"  {found[name]:5.2f} s  {name}" for name in sorted(found, key=found.__getitem__)[-5:]
            )


def has_a_cost(item: pytest.Item) -> bool:
    """True except for tests that need a GPU, and variants of the contract tests, which contract_ring.py selects."""
    return item.get_closest_marker("gpu") is None and "compiled" not in getattr(item, "fixturenames", ())


def cpu_seconds() -> float:
    """User and system time of this process and of the child processes that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def import_everything() -> None:
    """All of sparsegen that can be imported here, and with it what it imports."""
    for module in pkgutil.walk_packages(sparsegen.__path__, "sparsegen.", onerror=lambda _: None):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, PackageMissingError):  # an optional package is not there
                importlib.import_module(module.name)
