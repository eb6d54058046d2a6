"""Locks that all users and containers of a host share: `flock` on empty files in folders that everybody may write.

The files are opened without following links, are never written and never removed. The user who makes one leaves it
readable for all, as locking requires, and writable for no other user. So another user can at worst hold a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from sparsegen.system.child import Interrupted
from sparsegen.system.private import private_folder, unusable

log = logging.getLogger(__name__)

SHARED_PLACES = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))
OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MADE = OPENED | os.O_CREAT | os.O_EXCL
POLL_SECONDS = 0.05
LONG_SECONDS = 30.0  # a wait that is worth a line in the log


@contextmanager
def shared_lock(
    name: str, places: Sequence[Path], own: Path, *, stop: threading.Event | None = None
) -> Iterator[None]:
    """Hold a lock among all users of this host, from the first of these places that can be used.

    Args:
        name: the same for all who exclude each other; a file's name.
        own: a private folder, used if no place can be: then only this user's processes exclude each other, and a line
            in the log says so.
        stop: an event that, once set, ends the wait.

    Raises:
        CacheError: not even ``own`` can be used.
        Interrupted: ``stop`` was set.
    """
    file_name = f"sparsegen-{name}.lock"
    for place in places:
        path = place / file_name
        if not _is_shared(place):
            continue
        try:
            with _held(path, stop):
                yield
            return
        except _UnusableError as error:
            _tell_once(f"{path} cannot be used as a lock ({error})")
    _tell_once(
        f"no folder that all users share can be used for {file_name}: measurements of other users and containers on "
        "the same device may disturb these; name a folder that they share with SPARSEGEN_LOCKS"
    )
    with private_lock(name, own, stop=stop):
        yield


@contextmanager
def private_lock(name: str, folder: Path, *, stop: threading.Event | None = None) -> Iterator[None]:
    """Hold a lock among this user's processes with the same folder.

    Raises:
        CacheError: the folder cannot be used.
        Interrupted: ``stop`` was set.
    """
    private_folder(folder)
    try:
        with _held(folder / f"{name}.lock", stop):
            yield
    except _UnusableError as error:
        raise unusable(folder, error.reason) from error


class _UnusableError(Exception):
    """The file cannot be opened, made or locked."""

    def __init__(self, reason: OSError) -> None:
        self.reason = reason
        super().__init__(reason.strerror or str(reason))


def _is_shared(place: Path) -> bool:
    """True if all users may make files there, and none may remove another's."""
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and (not mode & stat.S_IWOTH or bool(mode & stat.S_ISVTX))


@contextmanager
def _held(path: Path, stop: threading.Event | None) -> Iterator[None]:
    """Acquires the lock; retries if the file was replaced meanwhile."""
    while True:
        try:
            descriptor = _opened(path)
            try:
                _lock(descriptor, path, stop)
                is_current = _is_named(descriptor, path)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise _UnusableError(error) from error
        if is_current:
            break
        os.close(descriptor)
    try:
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """The file, made where it is not there; a link, a pipe or a folder of this name is refused.

    One that is there is opened without asking for it to be made: Linux refuses that for another user's file in a
    folder like /tmp (``fs.protected_regular``).
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, OPENED)
            break
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, MADE, 0o644)
            os.fchmod(descriptor, 0o644)  # whatever the umask
            break
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no regular file", str(path))
    return descriptor


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _lock(descriptor: int, path: Path, stop: threading.Event | None) -> None:
    """Wait for the lock, in the order of asking, until ``stop`` is set.

    A thread waits, since nothing else could end the waiting. It has a descriptor of its own, which shares the lock:
    the lock of a wait that was given up ends as soon as it is had.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    waiting = os.dup(descriptor)
    done = threading.Event()
    failures: list[OSError] = []

    def wait() -> None:
        try:
            fcntl.flock(waiting, fcntl.LOCK_EX)
        except OSError as error:
            failures.append(error)
        finally:
            os.close(waiting)
            done.set()

    threading.Thread(target=wait, daemon=True, name="turn").start()
    waited = 0.0
    while not done.wait(POLL_SECONDS):
        if stop is not None and stop.is_set():
            raise Interrupted("interrupted")
        waited += POLL_SECONDS
        if waited - POLL_SECONDS < LONG_SECONDS <= waited:
            log.warning("another process has measured for %.0f s: waiting for %s", waited, path)
    if failures:
        raise failures[0]


@cache
def _tell_once(line: str) -> None:
    log.warning("%s", line)
