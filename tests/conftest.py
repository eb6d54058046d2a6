"""Fixtures and options that all tests share."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from typing import Any

import expectations
import pytest

from sparsegen import backends
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import DeviceUnavailableError
from sparsegen.settings import Settings

STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing")
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="how long tests/fuzz goes on, all of it")
    parser.addoption(
        "--fuzz-turns", type=int, default=1, help="turns of 100 attempts each, the same every time"
    )


@cache
def why_no_gpu() -> str:
    """Empty if there is one."""
    try:
        return "" if backends.gpu_devices() else "no GPU was found"
    except DeviceUnavailableError as error:
        return str(error)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none, and say why."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and why_no_gpu():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=why_no_gpu()))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say what to expect of a run of all tests."""
    if len(session.items) >= expectations.ALL and not session.config.option.collectonly:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            for line in expectations.beforehand(session.config, len(session.items), why_no_gpu()):
                reporter.write_line(line)


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Say why tests were skipped, and keep how long all of them took."""
    for line in expectations.skipped(terminalreporter.stats.get("skipped", ())):
        terminalreporter.write_line(line)
    ran = sum(len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "skipped"))
    if exitstatus == 0:
        expectations.remember(config, ran, time.monotonic() - STARTED)


@pytest.fixture(scope="session")
def emulator_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The environment's settings with a cache that only this run of the tests uses."""
    return replace(Settings.from_environment(), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def emulator_toolchain(emulator_settings: Settings) -> EmulatorToolchain:
    return EmulatorToolchain(emulator_settings)
