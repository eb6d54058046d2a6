"""Candidates under trial by equal searches on this machine: each is tried by one of them, and known to all.

A claim is a lock on a file, so that it ends with the process that holds it, however that ends. The files stay until the
last of the searches has ended: one that exists and is not locked says that the candidate was tried.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
from enum import Enum
from pathlib import Path
from typing import IO

from sparsegen.kernels.config import Config
from sparsegen.system.private import private_folder, unusable


class Taken(Enum):
    """Answer to a claim on a candidate."""

    FIRST = "it is ours, and nobody has tried it"
    AGAIN = "it is ours, and somebody may have tried it before"
    BUSY = "another search is trying it"


class Claims:
    """One search's claims. Where the file system knows no locks, every candidate is free.

    Args:
        folder: folder of the claims of all equal searches: for one workload, device and database.

    Raises:
        CacheError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[Config, IO[bytes]] = {}
        private_folder(folder)
        try:
            self._alive = (folder / "searches").open("ab")
        except OSError as error:
            raise unusable(folder, error) from error
        with contextlib.suppress(OSError):
            fcntl.flock(self._alive, fcntl.LOCK_SH)

    def take(self, candidate: Config) -> Taken:
        """Claim a candidate, until `give_back`."""
        path = self._folder / hashlib.sha256(repr(candidate.key).encode()).hexdigest()[:24]
        was_there = path.exists()
        try:
            file = path.open("ab")
        except OSError:  # the cache was cleared
            return Taken.FIRST
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return Taken.BUSY
        except OSError:
            file.close()
            return Taken.FIRST
        self._held[candidate] = file
        return Taken.AGAIN if was_there else Taken.FIRST

    def give_back(self, candidate: Config) -> None:
        """Releases a candidate whose outcome is recorded; does nothing if it is not held."""
        file = self._held.pop(candidate, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Give all back; the last search takes the files with it."""
        for candidate in list(self._held):
            self.give_back(candidate)
        with self._alive, contextlib.suppress(OSError):
            fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self._folder, ignore_errors=True)
