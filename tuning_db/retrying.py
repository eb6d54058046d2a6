"""Transactions are tried anew while their server restarts or has too many connections."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sparsegen.errors import DatabaseError
from sparsegen.tuning_db.engine import is_passing
from sparsegen.tuning_db.location import Location

log = logging.getLogger(__name__)

SERVER_SECONDS = 120.0  # time for a server that went away to come back
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between two attempts, in seconds

T = TypeVar("T")


def persistently(
    location: Location, work: Callable[[], T], is_passing: Callable[[DatabaseError], bool] = is_passing
) -> T:
    """Runs a transaction and returns its result; tries again after passing errors, except on a file.

    Args:
        location: the database's location.
        is_passing: says after which errors another attempt is made.

    Raises:
        DatabaseUnavailableError: the server was away for `SERVER_SECONDS`.
        DatabaseError: any other error of the transaction.
    """
    deadline, pause = None, FIRST_PAUSE
    while True:
        try:
            return work()
        except DatabaseError as error:
            if location.path is not None or not is_passing(error):
                raise
            now = time.monotonic()
            if deadline is None:
                deadline = now + SERVER_SECONDS
                log.info("%s; trying again for up to %.0f s", error, SERVER_SECONDS)
            elif now >= deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))  # many wait for the same server
        pause = min(2 * pause, LONGEST_PAUSE)
