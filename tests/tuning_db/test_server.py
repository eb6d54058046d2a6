"""A PostgreSQL server with two hundred writers, and one that is killed and restarted while they write."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from patience import patience
from postgres_server import Server
from tuning_samples import timed

from sparsegen.errors import DatabaseUnavailableError
from sparsegen.tuning_db import store as store_module
from sparsegen.tuning_db.store import Store

WRITERS = 200
EACH = 5


def write(location: str, tag: int, count: int) -> int:
    """Does what one search does: opens, records one by one, closes."""
    with Store.open(location) as store:
        for i in range(count):
            store.add_measurement(timed(1.0 + i, at=1000 * tag + i))
    return count


def test_two_hundred_writers_lose_nothing(own_server: Server) -> None:
    """Twice as many as the server takes connections; each with a store of its own, as searches on many hosts have."""
    with ThreadPoolExecutor(WRITERS) as pool:
        written = list(pool.map(lambda tag: write(own_server.url, tag, EACH), range(WRITERS)))
    with Store.open(own_server.url, read_only=True) as store:
        found = Counter(m.measured_at for m in store.all_measurements())
    assert sum(written) == len(found) == WRITERS * EACH and set(found.values()) == {1}


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_server_that_restarts_loses_nothing_that_was_stored(own_server: Server, how: str) -> None:
    Store.open(own_server.url).close()  # the tables
    stored: list[int] = []
    is_enough = threading.Event()

    def write_on(tag: int) -> None:
        with Store.open(own_server.url) as store:
            number = 0
            while not is_enough.is_set():
                store.add_measurement(timed(1.0, at=100_000 * tag + number))
                stored.append(100_000 * tag + number)
                number += 1

    def wait_for(count: int) -> None:
        while len(stored) < count and not any(writer.done() for writer in writers):
            time.sleep(0.01)

    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(write_on, tag) for tag in range(8)]
        try:
            wait_for(40)
            getattr(own_server, how)()
            before = len(stored)
            own_server.start()
            wait_for(before + 40)
        finally:
            is_enough.set()
        for writer in writers:
            writer.result()
    with Store.open(own_server.url, read_only=True) as store:
        found = Counter(m.measured_at for m in store.all_measurements())
    assert len(found) == len(stored) and set(found.values()) == {1}


def test_a_server_that_stays_away_is_an_error_in_time(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "SERVER_SECONDS", 0.5)
    with Store.open(own_server.url) as store:
        own_server.stop()
        try:
            with pytest.raises(DatabaseUnavailableError, match="check the URL and that the server runs"):
                store.add_measurement(timed(1.0))
            with pytest.raises(DatabaseUnavailableError):
                store.all_measurements()
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailableError):  # nobody has heard of this server yet: no waiting
                Store.open(own_server.url)
            assert time.monotonic() - began < store_module.SERVER_SECONDS + patience(10)
        finally:
            own_server.start()
        store.add_measurement(timed(1.0))
        assert len(store.all_measurements()) == 1
