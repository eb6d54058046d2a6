"""Folders and files that appear whole or not at all: caches of compiled variants, result files, reports."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def publish_folder(final: Path) -> Iterator[Path]:
    """A temporary folder beside ``final`` that takes its place on success and is removed on failure.

    Folders are private to their user (0700): a cubin that someone else can write is code that they can run.
    When another process publishes the same name first, its folder stays and this one is dropped.
    """
    final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        yield work
        try:
            work.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        if work.exists():
            shutil.rmtree(work, ignore_errors=True)


def publish_text(final: Path, text: str) -> None:
    """Write or replace a UTF-8 file; see `publish_file`."""
    with publish_file(final) as file:
        file.write(text.encode())


@contextmanager
def publish_file(final: Path) -> Iterator[BinaryIO]:
    """Write or replace a file: whoever is killed here leaves the old file or the new one.

    Raises:
        OSError: the folder or the file cannot be written.
    """
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
