"""The cache of compiled variants: one private folder for each, whole or absent, checked whenever it is used.

What lies here is loaded and run, so that nothing is taken that others than its user could have written
(docs/trust.md), or that is not byte for byte what was compiled. What is damaged is compiled again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sparsegen.errors import CacheError, CompileError
from sparsegen.system.private import distrust, private_folder, unusable
from sparsegen.system.publish import is_in_use, publish_folder

log = logging.getLogger(__name__)

META_NAME = "meta.json"
# <family>-<digest>, and the hidden temporary folders of compiles that are under way or were killed.
ENTRY = re.compile(r"(?P<family>[a-z][a-z0-9_]*)-[0-9a-f]{16,64}")
UNFINISHED = re.compile(rf"\.{ENTRY.pattern}-\w+")

Build = Callable[[Path], Mapping[str, Any]]


class _DamagedError(Exception):
    """An entry is not as it was published; the message says how."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole folder of the cache.

    Attributes:
        facts: facts noted when it was made.
        digests: SHA-256 of each file, in hexadecimal digits.
    """

    folder: Path
    facts: Mapping[str, Any]
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CompileCache:
    """One backend's part of the cache.

    Attributes:
        root: the cache's folder.
        backend: the name of the part.
    """

    root: Path
    backend: str

    @property
    def folder(self) -> Path:
        """Folder of the entries."""
        return self.root / self.backend

    def find(self, name: str) -> Entry | None:
        """The entry of a name; None where there is none, and where it was damaged and is gone now.

        Raises:
            CacheError: others could have written it, or it cannot be read.
        """
        folder = self.folder / name
        if not os.path.lexists(folder):
            return None
        private_folder(self.root)
        private_folder(self.folder)
        try:
            return _read(folder)
        except _DamagedError as damage:
            log.warning("%s is compiled again: %s", folder, damage)
        except OSError as error:
            raise unusable(folder, error) from error
        self.remove(folder)
        return None

    def make(self, name: str, build: Build) -> Entry:
        """Makes and returns a new entry, or returns the one that another process made meanwhile.

        Args:
            build: writes the files into the folder that it is given, and returns facts of them for JSON. It is called
                again if the folder is deleted meanwhile.

        Raises:
            CacheError: it cannot be written.
            Exception: any error of ``build``.
        """
        private_folder(self.root)
        private_folder(self.folder)
        _sweep_once(self.folder)
        try:
            is_published = self._publish(name, build) or self._publish(name, build)
        except OSError as error:
            raise unusable(self.folder, error) from error
        found = self.find(name)
        if found is None:
            why = (
                "it does not keep what is written"
                if is_published
                else "what compiles there is deleted at once"
            )
            raise CacheError(f"{self.folder / name}: {why}; set SPARSEGEN_CACHE to another folder")
        return found

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Let one process at a time make an entry that takes long, so that the others find it made.

        Without locks in the file system, no process waits.

        Raises:
            CacheError: the folder cannot be written.
        """
        private_folder(self.root)
        private_folder(self.folder)
        try:
            file = (self.folder / f"{name}.lock").open("ab")
        except OSError as error:
            raise unusable(self.folder, error) from error
        with file:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _publish(self, name: str, build: Build) -> bool:
        """Writes and publishes an entry; returns False if its folder is deleted while it is written."""
        try:
            with publish_folder(self.folder / name) as work:
                try:
                    facts = build(work)
                    digests = {path.name: file_digest(path) for path in sorted(work.iterdir())}
                    (work / META_NAME).write_text(
                        json.dumps({**facts, "sha256": digests}, indent=1) + "\n", encoding="utf-8"
                    )
                except (OSError, CompileError) as error:
                    if work.exists():
                        raise
                    raise FileNotFoundError(f"{work} was deleted") from error
        except FileNotFoundError:
            return False
        return True

    def remove(self, path: Path) -> None:
        """Move an entry aside in one step, then delete it, so that no process finds half of one.

        Raises:
            CacheError: it cannot be deleted.
        """
        try:
            aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
            path.rename(aside / "entry")
            shutil.rmtree(aside)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            raise unusable(path, error) from error

    def entries(self) -> Iterator[tuple[str, Path]]:
        """The families and folders of all entries, damaged ones included, by name; no links.

        Raises:
            CacheError: the folder cannot be read.
        """
        for folder in self._folders():
            match = ENTRY.fullmatch(folder.name)
            if match:
                yield match["family"], folder

    def unfinished(self) -> Iterator[Path]:
        """Yields the folders that killed compiles left behind.

        Raises:
            CacheError: the folder cannot be read.
        """
        for folder in self._folders():
            if UNFINISHED.fullmatch(folder.name) and not is_in_use(folder):
                yield folder

    def _folders(self) -> Iterator[Path]:
        try:
            if self.folder.is_symlink() or not self.folder.is_dir():
                return
            listed = sorted(self.folder.iterdir())
        except OSError as error:
            raise unusable(self.folder, error) from error
        yield from (path for path in listed if path.is_dir() and not path.is_symlink())


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(folder: Path) -> Entry:
    """
    Raises:
        _DamagedError: it is not as it was published.
        CacheError: others could have written it.
    """
    _require_own(folder, stat.S_ISDIR, "a folder")
    try:
        meta = json.loads(_text(folder / META_NAME))
        digests = dict(meta["sha256"])
    except (ValueError, RecursionError, TypeError, KeyError):
        raise _DamagedError(f"{META_NAME} does not say what the files were") from None
    for name, digest in digests.items():
        path = folder / name
        if path.parent != folder:
            raise _DamagedError(f"{META_NAME} names a file elsewhere")
        _require_own(path, stat.S_ISREG, "a file")
        if file_digest(path) != digest:
            raise _DamagedError(f"{name} is not what was compiled")
    return Entry(folder, meta, digests)


def _text(path: Path) -> str:
    _require_own(path, stat.S_ISREG, "a file")
    return path.read_text(encoding="utf-8")


def _require_own(path: Path, is_kind: Callable[[int], bool], kind: str) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise _DamagedError(f"{path.name} is missing") from None
    if not is_kind(status.st_mode):
        raise _DamagedError(f"{path.name} is not {kind}")
    why = distrust(status)
    if why:
        raise CacheError(
            f"{path} is not loaded, as {why}, and could have it run what they like: "
            "delete it, or set SPARSEGEN_CACHE to a folder of your own"
        )


@cache
def _sweep_once(folder: Path) -> None:
    """Delete what killed compiles left in a folder; once in the life of a process, at its first compile."""
    for left in CompileCache(folder.parent, folder.name).unfinished():
        log.info("%s was left by a compile that was killed; it is deleted", left)
        shutil.rmtree(left, ignore_errors=True)
