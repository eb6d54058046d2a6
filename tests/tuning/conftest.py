"""Settings and stores of searches of the toy family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tuning_fakes

from sparsegen.tuning_db.store import Store


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The toy family is installed, with a cache of its own."""
    yield from tuning_fakes.toy_installed(monkeypatch, tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "tuning.db") as opened:
        yield opened
