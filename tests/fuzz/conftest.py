"""Says at the end how many attempts there were."""

from __future__ import annotations

import pytest
from fuzz_report import ATTEMPTS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--fuzz-seconds"):
        terminalreporter.section("fuzz: attempts")
        for name, attempts in ATTEMPTS.items():
            terminalreporter.write_line(f"{attempts:9,}  {name}")
