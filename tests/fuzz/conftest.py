"""Readers of files give a value or one of sparsegen's own errors, whatever a file holds.

A run of the tests makes a hundred attempts at each, `.ci/run` four hundred, the same ones every time, so that a change
is judged by what it does. ``make fuzz SECONDS=3600`` goes on for an hour, from another seed every time, and says at its
end how many attempts there were.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from fuzz_report import ATTEMPTS, Fuzz

TURN = 100  # attempts between two looks at the clock
TARGETS = 15  # among which the seconds are divided


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """Make the turns asked for, then go on until this target's part of the time is over."""
    seconds = request.config.getoption("--fuzz-seconds") / TARGETS
    turns = request.config.getoption("--fuzz-turns")

    def run(strategy: st.SearchStrategy[Any], attempt: Callable[[Any], None]) -> None:
        seed = secrets.randbits(32) if seconds else 0
        ended, attempts = time.monotonic() + seconds, 0

        def counted(value: Any) -> None:
            nonlocal attempts
            attempts += 1
            attempt(value)

        settings = hypothesis.settings(
            max_examples=TURN,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        while True:
            hypothesis.seed(seed)(settings(hypothesis.given(strategy)(counted)))()
            ATTEMPTS[request.node.name] = attempts
            if attempts >= turns * TURN and time.monotonic() >= ended:
                return
            seed += 1

    return run


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """A warning for every damaged row is what they are for, but not thousands of them."""
    caplog.set_level(logging.CRITICAL)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--fuzz-seconds"):
        terminalreporter.section("fuzz: attempts")
        for name, attempts in ATTEMPTS.items():
            terminalreporter.write_line(f"{attempts:9,}  {name}")
