"""Folders that appear whole or not at all: the on-disk caches of compiled variants share this."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(
        os.lstat(Path(parent) / name).st_size for parent, _, names in os.walk(folder) for name in names
    )
