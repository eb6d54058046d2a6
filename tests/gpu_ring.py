"""The ring of GPU tests, `make test-gpu` (``pytest -m gpu``): its order, its seconds, and what it says at the end.

Several processes share a device: no contract test measures time. The other files come first, dealt out over the
processes (sharing.py). Then contract tests come in turns: first the first variant of every family, then every family's
heuristics at one size, then second variants, and so on; variants of the short ring (sparsegen.testing.cover) before
others. So whatever the budget, each family has had as many turns as any other, but for one. What the budget leaves no
time for is counted as not run.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from sparsegen import backends
from sparsegen.errors import SparsegenError
from sparsegen.kernels import families
from sparsegen.plan.executors import shared_executor

RING = "gpu"  # what pytest's -m says
CONTRACT = "test_contract_gpu.py"
ON_EMULATOR = (CONTRACT, "test_network_gpu.py")  # files that --gpu-device emulator runs
NOT_RUN = "not run: the seconds of --gpu-budget were over"
SIZES = (49, 256, 1)  # of the heuristics' tests, in the order of their turns
GRACE = 30.0  # seconds beyond the budget that a test may go on
PROGRESS = 10.0  # seconds between two lines
FAILURE = 1500  # last characters of why a test failed that are printed at once
DEADLINE = "sparsegen gpu deadline"  # where xdist carries it to its workers
LOST = pytest.StashKey[str]()  # why the device is of no use to this process any more
LOST_EXIT = 70


def group_of(test: str) -> str:
    """Returns the family of a contract test, given pytest's name of it; for other tests the file."""
    file, _, name = test.partition("::")
    if Path(file).name == CONTRACT:
        words = name.partition("[")[2].rstrip("]").split("-")
        return next((word for word in words if word in families()), CONTRACT)
    return file.removeprefix("tests/")


def in_turns(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests in the ring's order: those of other files come first, and contract tests get what time is left."""
    others = [item for item in items if item.path.name != CONTRACT]
    of_family: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.name == CONTRACT:
            of_family.setdefault(group_of(item.nodeid), []).append(item)
    turns = zip_longest(*map(_turns_of, of_family.values()))
    return [*others, *(item for turn in turns for item in turn if item is not None)]


def _turns_of(items: list[pytest.Item]) -> list[pytest.Item]:
    """A family's: variants of the short ring, then the others; after each of the first ones heuristics at a size."""
    params = {item.nodeid: getattr(item, "callspec").params for item in items}  # noqa: B009 - of functions alone
    variants = [item for item in items if "variant" in params[item.nodeid]]
    sized = sorted(
        (item for item in items if "size" in params[item.nodeid]),
        key=lambda item: SIZES.index(params[item.nodeid]["size"]),
    )
    variants.sort(key=lambda item: not _is_short(params[item.nodeid]["variant"]))
    pairs = zip_longest(variants, sized)
    return [item for pair in pairs for item in pair if item is not None]


def _is_short(variant: Any) -> bool:
    from sparsegen.testing.cover import (
        short_ring,  # draws variants of all families, which no other ring's start needs
    )

    return variant in short_ring(variant.family)


def why_lost() -> str:
    """Returns why every launch of the executor that operators share fails from now on; empty if it does not."""
    try:
        for device in backends.gpu_devices()[:1]:
            executor = shared_executor(device)
            executor.activate()
            executor.synchronize()
    except SparsegenError as error:
        return str(error)
    return ""


class Turns:
    """In each process that runs tests: the order, the budget, and an end where the device is lost.

    Args:
        deadline: of `time.monotonic`, which all processes of a host share; None for no budget.
    """

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = in_turns(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            pytest.skip(NOT_RUN)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and (why := why_lost()):
            item.config.stash[LOST] = why
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        config = self._config
        if why := config.stash.get(LOST, ""):
            if not hasattr(config, "workerinput"):
                pytest.exit(f"{nodeid} lost the device: {why}", returncode=LOST_EXIT)
            sys.stderr.flush()
            os._exit(LOST_EXIT)  # xdist starts another process, whose device is well

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config


class Ledger:
    """In the process that reports: progress, a line for each family at the end, and an end to what hangs.

    Args:
        deadline: as that of `Turns`.
    """

    def __init__(self, deadline: float | None) -> None:
        self._deadline, self._started = deadline, time.monotonic()
        self._outcomes: dict[str, str] = {}  # of each test that was collected
        self._seconds: Counter[str] = Counter()  # of each group
        self._recent: dict[str, None] = {}  # groups since the last line of progress, in order
        self._told = self._started
        self._watch: threading.Timer | None = None
        self._plugins: pytest.PytestPluginManager | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[DEADLINE] = self._deadline

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def _expect(self, tests: Sequence[str]) -> None:
        self._outcomes = {**dict.fromkeys(tests, "not run"), **self._outcomes}
        if self._deadline is not None and self._watch is None:
            left = max(0.0, self._deadline + GRACE - time.monotonic())
            if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
                # As in a job in the background, which nothing would interrupt.
                signal.signal(signal.SIGINT, signal.default_int_handler)
            self._watch = threading.Timer(left, _thread.interrupt_main)
            self._watch.daemon = True
            self._watch.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        group = group_of(report.nodeid)
        self._seconds[group] += report.duration
        outcome = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            outcome = "not run" if NOT_RUN in report.longrepr[2] else "skipped"  # type: ignore[assignment]
        if report.when == "call" or outcome != "passed":
            before = self._outcomes.get(report.nodeid)
            self._outcomes[report.nodeid] = "failed" if "failed" in (before, outcome) else outcome
        if outcome == "failed" and self._reporter is not None:  # now: what is killed prints no summary
            self._reporter.write_line(f"\nFAILED {report.nodeid}\n{report.longreprtext[-FAILURE:]}")
        self._recent[group] = None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if (now := time.monotonic()) - self._told >= PROGRESS and self._reporter is not None:
            self._told = now
            self._reporter.ensure_newline()
            self._reporter.write_line(self.progress())

    def progress(self) -> str:
        """Describes how many tests have ended, and which groups had tests since the last call."""
        counts = Counter(self._outcomes.values())
        ended = len(self._outcomes) - counts["not run"]
        recent, self._recent = ", ".join(self._recent), {}
        seconds = time.monotonic() - self._started
        return f"{seconds:.0f} s: {ended} of {len(self._outcomes)} tests, {counts['failed']} failed; now {recent}"

    def pytest_configure(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    @property
    def _reporter(self) -> Any:
        return None if self._plugins is None else self._plugins.get_plugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._reporter is not None and self._outcomes:
            for line in self.lines():  # the last ones: pytest's own summary stands before them
                self._reporter.write_line(line)

    def lines(self) -> Iterator[str]:
        """A table: tests of each group by their outcome, and what they took in seconds of all processes."""
        columns = ("passed", "failed", "skipped", "not run")
        found: dict[str, Counter[str]] = {}
        for test, outcome in self._outcomes.items():
            found.setdefault(group_of(test), Counter())[outcome] += 1
        width = max(len(group) for group in (*found, "GPU tests"))
        yield f"{'GPU tests':{width}} {' '.join(f'{c:>7}' for c in columns)} seconds"
        rows = [(group, found[group], self._seconds[group]) for group in sorted(found)]
        all_of_them = sum((counts for _, counts, _ in rows), Counter[str]())
        for group, counts, seconds in (*rows, ("all", all_of_them, sum(self._seconds.values()))):
            numbers = " ".join(f"{counts[c]:>7}" for c in columns)
            yield f"{group:{width}} {numbers} {seconds:7.1f}"


def register(config: pytest.Config, budget: float) -> None:
    """Have pytest run its tests as this ring.

    Args:
        budget: seconds from now after which no test begins; 0 for no limit.
    """
    given = getattr(config, "workerinput", None)
    deadline = time.monotonic() + budget if budget else None
    if given is not None:
        config.pluginmanager.register(Turns(given[DEADLINE]))
        return
    config.pluginmanager.register(Turns(deadline))
    config.pluginmanager.register(Ledger(deadline))
