"""Options of the networks in these tests: the emulator, with a database of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsegen.settings import Settings


@pytest.fixture
def where(tmp_path: Path, emulator_settings: Settings) -> dict[str, Any]:
    """Options of a network."""
    return {"device": "emulator", "db": tmp_path / "tuning.db"}
