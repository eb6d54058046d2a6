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
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from sparsegen.errors import OutputError, OutputExistsError
from sparsegen.system.compressed import compress, is_compressed
from sparsegen.system.output_places import is_stream, open_stream, output_place

JUST_BEGUN = 60.0  # seconds in which a folder's maker may not have locked it yet
ABANDONED = 86400.0  # seconds after which a folder counts as abandoned, if the file system has no locks
READABLE = 0o644  # permissions of a new file, less those that the process's umask takes


@contextmanager
def made_folder(folder: Path, mode: int = 0o777) -> Iterator[None]:
    """A folder for an output, made where it is missing; what was made and is empty at the end is removed."""
    missing = list(takewhile(lambda path: not path.exists(), (folder, *folder.parents)))
    try:
        if missing:  # a file in its place is told by whoever writes there
            folder.mkdir(parents=True, exist_ok=True, mode=mode)
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()


@contextmanager
def publish_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside ``final`` that takes its place on success and is removed on failure.

    Folders are private to their user (0700): a cubin that someone else can write is code that they can run.
    When another process publishes the same name first, its folder stays and this one is dropped. The temporary folder
    is locked for as long as this process lives, so that others can tell what a killed one left (`is_in_use`).
    """
    import tempfile  # look-ups read what is published, and write nothing

    with made_folder(final.parent, 0o700):
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
    """True if a process is still writing a temporary folder of `publish_folder`."""
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


def publish_text(final: Path, text: str) -> int:
    """Write or replace a UTF-8 file, compressed where its name ends in ``.xz``; its bytes. See `publish_file`.

    What no encoding has, as in odd names of files, is escaped.
    """
    data = compress(text) if is_compressed(final) else text.encode("utf-8", "backslashreplace")
    with publish_file(final) as file:
        return file.write(data)


@contextmanager
def reported(path: str | Path, advice: str = "") -> Iterator[None]:
    """Turns an OSError of the block into an error that names the output.

    Args:
        advice: advice after a semicolon.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        told = f"cannot be written: {error.strerror or error}"
        raise OutputError("; ".join(filter(None, (told, advice))), path=path) from error


def refuse_existing(path: Path, *, force: bool) -> None:
    """Refuse what is there already, unless it is to be overwritten; devices and pipes never are.

    Raises:
        OutputExistsError: something is there.
        OutputError: it has a name that no file can have.
    """
    if _exists(path) and not force and not is_stream(path):
        raise OutputExistsError(
            "it is there already; choose another name, or overwrite it with --force", path=path
        )


def refuse_other(path: Path, suffix: str) -> None:
    """Refuse a file that is there and has another suffix: it is not an older output of ours.

    Raises:
        OutputExistsError: there is one.
        OutputError: it has a name that no file can have.
    """
    if _exists(path) and path.suffix.lower() != suffix and not is_stream(path):
        raise OutputExistsError(
            f"it is there already, and not a {suffix} file; choose another name", path=path
        )


def _exists(path: Path) -> bool:
    with reported(path):
        return path.exists()


def require_place(final: Path) -> None:
    """Refuse, before long work, a place that `publish_file` could not write; nothing is made, and what is there stays.

    Raises:
        OutputError: it is a folder, a URL, or cannot be written.
    """
    with reported(final):
        place = output_place(final)
        if place.is_stream:  # opened once alone: whoever reads a pipe takes its closing for the end
            if not os.access(place.path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        nearest = next(folder for folder in place.path.parents if folder.exists())
        descriptor, work = _beside(nearest / place.path.name)
        os.close(descriptor)
        work.unlink()


@contextmanager
def publish_file(final: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Write or replace a file, in a folder that is made if need be: whoever is killed leaves the old file or the new.

    What is written can be sought in and read back. A link is followed, and what it leads to is replaced. Into a device
    or a pipe the bytes go when all of them are there (`sparsegen.system.output_places`).

    Args:
        mode: the file's permissions; by default those of the file that is there, else `READABLE` less the umask's.

    Raises:
        OSError: the folder or the file cannot be written.
        OutputError: the name is a URL.
    """
    place = output_place(final)
    if place.is_stream:
        with _copied_into(place.path) as file:
            yield file
        return
    with made_folder(place.path.parent):
        descriptor, work = _beside(place.path)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            kept = place.mode if mode is None else mode
            if kept is not None:
                work.chmod(kept)
            work.replace(place.path)
        finally:
            work.unlink(missing_ok=True)


@contextmanager
def _copied_into(stream: Path) -> Iterator[BinaryIO]:
    """A temporary file, which is copied into a device or a pipe when the block ends well."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        yield file
        file.seek(0)
        with os.fdopen(open_stream(stream), "wb") as out:
            shutil.copyfileobj(file, out)


def _beside(final: Path) -> tuple[int, Path]:
    """A new hidden file in the folder that a file is to be in, open; its name never is too long."""
    work = final.with_name(f".sparsegen-{os.urandom(8).hex()}")
    return os.open(work, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, READABLE), work


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(
        os.lstat(Path(parent) / name).st_size for parent, _, names in os.walk(folder) for name in names
    )
