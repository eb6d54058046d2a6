"""Folders and files that appear whole or not at all: caches of compiled variants, result files, reports."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sparsegen.errors import OutputError, OutputExistsError

JUST_BEGUN = 60.0  # seconds in which a folder's maker may not have locked it yet
ABANDONED = 86400.0  # seconds after which nobody writes a folder any more, where the file system has no locks


@contextmanager
def publish_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside ``final`` that takes its place on success and is removed on failure.

    Folders are private to their user (0700): a cubin that someone else can write is code that they can run.
    When another process publishes the same name first, its folder stays and this one is dropped. The temporary folder
    is locked for as long as this process lives, so that others can tell what a killed one left (`is_in_use`).
    """
    import tempfile  # look-ups read what is published, and write nothing

    final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    descriptor = os.open(work, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # NFS locks no folders
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
        _to_disk(work)
        try:
            work.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        _flush(final.parent)
    finally:
        os.close(descriptor)
        if work.exists():
            shutil.rmtree(work, ignore_errors=True)


def is_in_use(work: Path) -> bool:
    """Whether a process is still writing a temporary folder of `publish_folder`."""
    try:
        age = time.time() - work.stat().st_mtime
        descriptor = os.open(work, os.O_RDONLY)
    except OSError:
        return False  # it has just been published, or removed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return age < ABANDONED
    finally:
        os.close(descriptor)
    return age < JUST_BEGUN


def _to_disk(folder: Path) -> None:
    """Wait until a folder's files would survive a power cut."""
    for parent, _, names in os.walk(folder):
        for name in names:
            _flush(Path(parent) / name)
        _flush(Path(parent))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems flush no folders
            raise
    finally:
        os.close(descriptor)


def publish_text(final: Path, text: str) -> None:
    """Write or replace a UTF-8 file; see `publish_file`."""
    with publish_file(final) as file:
        file.write(text.encode())


@contextmanager
def reported(path: str | Path, advice: str = "") -> Iterator[None]:
    """What the system says of an output that the block writes, as an error that names it.

    Args:
        advice: what to do, after a semicolon.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        told = f"cannot be written: {error.strerror or error}"
        raise OutputError("; ".join(filter(None, (told, advice))), path=path) from error


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raises OutputExistsError for what is there already, unless it is to be overwritten."""
    if path.exists() and not force:
        raise OutputExistsError(
            "it is there already; choose another name, or overwrite it with --force", path=path
        )


def refuse_other(path: Path, suffix: str) -> None:
    """Raises OutputExistsError for a file that is there and has another suffix: it is not an older output of ours."""
    if path.exists() and path.suffix.lower() != suffix:
        raise OutputExistsError(
            f"it is there already, and not a {suffix} file; choose another name", path=path
        )


def require_place(final: Path) -> None:
    """Refuse, before long work, a place that `publish_file` could not write; what is there stays.

    Raises:
        OutputError: it is a folder, or cannot be written.
    """
    import tempfile

    with reported(final):
        if final.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=f".{final.name}-", dir=final.parent):
            pass


@contextmanager
def publish_file(final: Path) -> Iterator[BinaryIO]:
    """Write or replace a file: whoever is killed here leaves the old file or the new one.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    import tempfile

    final.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{final.name}-", dir=final.parent)
    work = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        work.chmod(0o644)  # mkstemp makes it private
        work.replace(final)
    finally:
        work.unlink(missing_ok=True)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(
        os.lstat(Path(parent) / name).st_size for parent, _, names in os.walk(folder) for name in names
    )
