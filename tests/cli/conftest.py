"""The fixture of all command-line tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)  # a project's database in the working folder must not be seen
    return Command(tmp_path)
