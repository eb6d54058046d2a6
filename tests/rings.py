"""What rings of tests there are: `make test-fast`, `make test`, all; and whether processes share this run's tests.

A test that took `LONG` seconds of CPU time is in the last ring alone, one that took `SLOW` is not in the first. What
tests took stands in costs.json, which `pytest --record-costs` writes; a test that is not there is in all rings. The
contract tests, which do the same to hundreds of variants, are not in the first, and say themselves which variants are
in the second (contract_ring.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

SLOW, LONG = 0.25, 0.75  # seconds of CPU time
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # one of several processes that share out the tests
COSTS = Path(__file__).with_name("costs.json")
FOLDER = Path(__file__).parent


def name_of(item: pytest.Item) -> str:
    """As pytest names it when it is started at the root of the repository, wherever that was."""
    return f"{item.path.relative_to(FOLDER).as_posix()}::{item.nodeid.partition('::')[2]}"


def sort_into_rings(items: list[pytest.Item]) -> None:
    """Mark tests as ``slow`` and ``long``, and keep each file's in one process, but for variants of the contract.

    A variant is alone in its group, so that all processes end at about the same time.
    """
    costs: dict[str, float] = json.loads(COSTS.read_text())
    for item in items:
        seconds = costs.get(name_of(item), 0.0)
        if seconds >= LONG:
            item.add_marker(pytest.mark.long)
        is_contract = item.path.name.startswith("test_contract")
        if seconds >= SLOW or is_contract or item.get_closest_marker("sanitizer"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.xdist_group("gpu"))  # one process has the device
        elif "compiled" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


class Recorder:
    """Adds up the CPU seconds of each test, its child processes' included, in a run of one process."""

    def __init__(self) -> None:
        self.costs: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> object:
        before = sum(os.times()[:4])
        done = yield
        if not item.get_closest_marker("gpu") and "compiled" not in getattr(item, "fixturenames", ()):
            self.costs[name_of(item)] = round(sum(os.times()[:4]) - before, 2)
        return done

    def pytest_sessionfinish(self) -> None:
        known: dict[str, float] = json.loads(COSTS.read_text())
        kept = {name: s for name, s in sorted({**known, **self.costs}.items()) if s >= SLOW}
        COSTS.write_text(json.dumps(kept, indent=1) + "\n")
