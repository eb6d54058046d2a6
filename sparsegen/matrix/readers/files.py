"""Opening matrix files: whole contents, gzip, and what a file with the wrong suffix really is."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsegen.errors import MatrixError, one_line
from sparsegen.matrix.budget import MemoryBudget

PIECE = 4 * 2**20  # bytes that are unpacked at once
LONGEST_SHOWN = 100  # characters of a value in a message
_SIGNATURES = {
    b"PK\x03\x04": "a zip archive (.npz)",
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"\x1f\x8b": "gzip-compressed (.gz)",
    b"%%MatrixMarket": "Matrix Market (.mtx)",
}


def check_readable(path: Path) -> None:
    """Refuse what is not a file with something in it.

    Raises:
        MatrixError: missing, a folder, a device, empty, or not permitted.
    """
    try:
        if not path.exists():
            raise MatrixError("there is no such file", source=path)
        if not path.is_file():
            raise MatrixError("this is no file" + (" but a folder" if path.is_dir() else ""), source=path)
        if path.stat().st_size == 0:
            raise MatrixError("the file is empty", source=path)
        with path.open("rb"):
            pass
    except OSError as error:
        raise MatrixError(f"cannot be read: {error.strerror}", source=path) from error


def read_text(path: Path, budget: MemoryBudget) -> bytes:
    """The contents of a text file, decompressed if its name ends in ``.gz``.

    Raises:
        MatrixError: damaged or truncated gzip, nothing in it, or more than the budget.
    """
    if _is_gzip(path):
        content = _unpacked(path, budget)
    else:
        budget.require(path.stat().st_size, "the text")
        content = path.read_bytes()
    if not content.strip():
        raise MatrixError("the file is empty", source=path)
    return content


def read_first_line(path: Path, *, limit: int) -> bytes:
    """The first line of a text file, decompressed if its name ends in ``.gz``, cut off after ``limit`` bytes.

    Raises:
        MatrixError: the file cannot be read, or its gzip stream is damaged or truncated.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
            file.seek(0)
            if not _is_gzip(path):
                return file.readline(limit)
            with _sound_gzip(path, start), gzip.open(file) as stream:
                return stream.readline(limit)
    except OSError as error:
        raise MatrixError(f"cannot be read: {error.strerror or error}", source=path) from error


def _unpacked(path: Path, budget: MemoryBudget) -> bytes:
    """Piece by piece, so that no more is unpacked than may be."""
    content = io.BytesIO()
    with path.open("rb") as file:
        start = file.read(16)
        file.seek(0)
        with _sound_gzip(path, start), gzip.open(file) as stream:
            while piece := stream.read(PIECE):
                content.write(piece)
                budget.require(content.tell(), "the unpacked text")
    return content.getvalue()


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


@contextmanager
def _sound_gzip(path: Path, content: bytes) -> Iterator[None]:
    """Faults of a gzip stream as `MatrixError`; ``content`` is its start, to tell what else it is."""
    try:
        yield
    except EOFError:
        raise MatrixError("the gzip stream is truncated; copy the file again", source=path) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise MatrixError(f"not a sound gzip file: {error}{hint(content)}", source=path) from error


def clipped(value: object) -> str:
    """Shortens a value for a message: a file may hold values as long as itself and of many lines."""
    text = str(value)
    return one_line(text) if len(text) <= LONGEST_SHOWN else f"{one_line(text[:LONGEST_SHOWN])}..."


def hint(content: bytes) -> str:
    """Names a file's content by its first bytes, as the end of a message; empty if they say nothing."""
    for signature, word in _SIGNATURES.items():
        if content.startswith(signature):
            return f"; its content is {word}"
    return ""
