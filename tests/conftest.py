"""Fixtures and options that all tests share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsegen import backends
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import DeviceUnavailableError
from sparsegen.settings import Settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing")
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="how long tests/fuzz goes on, all of it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is none, and say why."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    try:
        reason = "" if backends.gpu_devices() else "no GPU was found"
    except DeviceUnavailableError as error:
        reason = str(error)
    if reason:
        for item in needing:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def emulator_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The environment's settings with a cache that only this run of the tests uses."""
    return replace(Settings.from_environment(), cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def emulator_toolchain(emulator_settings: Settings) -> EmulatorToolchain:
    return EmulatorToolchain(emulator_settings)
