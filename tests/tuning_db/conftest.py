"""The database and the server that tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import postgres_server
import pytest

from sparsegen.tuning_db import reading
from sparsegen.tuning_db.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "tuning.db")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a server: SPARSEGEN_TEST_POSTGRES, else one that is started here; skips where there can be none."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: make test-postgres")
    given = os.environ.get("SPARSEGEN_TEST_POSTGRES")
    if given:
        yield given
        return
    try:
        started = postgres_server.running()
        url = started.__enter__().url
    except postgres_server.UnavailableError as error:
        pytest.skip(str(error))
    try:
        yield url
    finally:
        started.__exit__(None, None, None)


@pytest.fixture
def own_server() -> Iterator[postgres_server.Server]:
    """A server of one test's own, which may stop and kill it; skips where there can be none."""
    with postgres_server.own_or_skip() as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process of its own, as warnings of damaged rows go: schemas on the server have equal names."""
    monkeypatch.setattr(reading, "_NAMED", {})
