"""The fixture of all command-line tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command

from sparsegen.settings import Settings


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)  # a project's database in the working folder must not be seen
    return Command(tmp_path)


@pytest.fixture
def shared_cache(run: Command, emulator_settings: Settings) -> None:
    """The cache of all tests instead of an own one: for commands that run kernels, whose runtime is there then."""
    run.environment["SPARSEGEN_CACHE"] = str(emulator_settings.cache)
