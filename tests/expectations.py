"""Messages of a run of many tests: before it the time and what is missing, after it what was skipped."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from rings import FAST

MANY = 3000  # tests from which a run says how long it takes
# By ring, on two cores with nothing else to do, reckoned from CPU seconds.
MINUTES = {FAST: 1, "not long": 7, "long": 15, "long or torch": 18, "": 10}
KEPT = "sparsegen/minutes"
OPTIONAL = {  # what tests need -> what has it
    "torch": "make test-torch",
    "nbformat": "make test-examples",
    "psycopg": "make test-postgres",
}


def beforehand(config: pytest.Config, tests: int, gpu_reason: str) -> Iterable[str]:
    """Lines to show before a run of many tests."""
    kept = getattr(config, "cache", None)  # pytest's plugin may be off
    known = kept.get(_key(config), None) if kept else None
    minutes = max(1, round(known or MINUTES.get(config.option.markexpr, MINUTES[""])))
    where = "as the last time here" if known else "on two cores with nothing else to do"
    yield f"{tests} tests: about {minutes} minutes, {where}"
    if gpu_reason:
        yield f"tests that need a GPU are skipped: {gpu_reason}"
    for package, target in OPTIONAL.items():
        if importlib.util.find_spec(package) is None:
            yield f"tests that need {package} are skipped, as it is not installed: {target}"


def remember(config: pytest.Config, tests: int, seconds: float) -> None:
    """Keep how long a run of many tests took."""
    kept = getattr(config, "cache", None)
    if kept and tests >= MANY:
        kept.set(_key(config), seconds / 60)


def _key(config: pytest.Config) -> str:
    """Returns the key of a ring: its marks alone tell it from the others."""
    return f"{KEPT}/{config.option.markexpr or 'all'}".replace(" ", "-")


def skipped(reports: Iterable[Any]) -> Iterable[str]:
    """Yields the number of skipped tests for each reason."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ").partition("\n")[0]
        for report in reports
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        yield f"skipped {count}: {reason}"
