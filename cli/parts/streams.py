"""Standard output that is full, closed or a terminal which obeys what it is shown."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from sparsegen.errors import OutputError

_NAME = "standard output"
# Control characters but line ends and tabs, and what turns the direction of text.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Text as a terminal may get it: what it would obey is written as an escape (``\x1b``).

    Names of files and tensors, and what files hold, stand in messages and tables.
    """
    return text if text.isprintable() else _OBEYED.sub(lambda found: _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"


class Checked:
    """A stream whose failures are `OutputError`; all else is the stream's own.

    A pipe whose reader has gone (``| head``) stays click's affair, which ends the command quietly.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _reported():
            return self._there().write(text)

    def flush(self) -> None:
        with _reported():
            self._there().flush()

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def _there(self) -> TextIO:
        if self._stream is None:  # Python found it closed at its start
            raise OSError(errno.EBADF, "it is closed")
        return self._stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def checked_output() -> Iterator[None]:
    """Turns failures to write standard output inside the block into `OutputError`; after it nothing is left to
    write.
    """
    honest = sys.stdout
    replace_unencodable(honest)
    checked: Any = Checked(honest)
    sys.stdout = checked
    try:
        yield
    finally:
        sys.stdout = honest
        if honest is not None:
            _finish(honest)


def replace_unencodable(stream: object) -> None:
    """Have a stream write ``?`` for what its encoding does not have, where Python would raise UnicodeEncodeError."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def _finish(stream: TextIO) -> None:
    """Python flushes the stream once more when it ends, and would print a traceback if that fails."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OutputError(f"cannot be written: {error.strerror}", path=_NAME) from error
