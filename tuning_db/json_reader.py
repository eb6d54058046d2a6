"""Reads JSON that someone else wrote: every value is checked, and every complaint names its path."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NoReturn

from sparsegen.errors import ImportFileError, SparsegenError
from sparsegen.system.compressed import decompress, is_compressed
from sparsegen.system.json_object import Json
from sparsegen.system.memory import available_bytes
from sparsegen.system.quantities import size_text
from sparsegen.tuning_db.conversion import printable

HEX = "[0-9a-f]{64}"  # a SHA-256
LONGEST_SHOWN = 80  # characters of a value in a complaint
MEMORY_PER_BYTE = 12  # bytes of Python's objects for a byte of JSON; numbers and short names take about 8


def require_readable(path: Path, largest: int, error: type[SparsegenError] = ImportFileError) -> None:
    """Refuse, by what the system says of it, what is not to be read as JSON.

    Args:
        largest: bytes that a file may have. One whose values may not fit into the memory that is left is refused too.

    Raises:
        SparsegenError: ``error``: it is not there, is no regular file, or is larger.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as reason:  # ValueError: a name that no file can have
        raise error(f"{path}: {getattr(reason, 'strerror', reason)}") from None
    if not S_ISREG(found.st_mode):  # a pipe may never end, nor does /dev/zero
        raise error(f"{path}: this is no file" + (" but a folder" if S_ISDIR(found.st_mode) else ""))
    if found.st_size > largest:
        raise error(f"{path}: {found.st_size} bytes are more than the limit of {largest}")
    _require_memory(path, found.st_size, error)


def _require_memory(path: Path, nbytes: int, error: type[SparsegenError]) -> None:
    left = available_bytes()
    if left is not None and nbytes * MEMORY_PER_BYTE > left:
        raise error(
            f"{path}: {size_text(nbytes)} of JSON may take {MEMORY_PER_BYTE} times as much memory, and "
            f"{size_text(left)} are left"
        )


def read_text(path: Path, largest: int, error: type[SparsegenError] = ImportFileError) -> str:
    """Return a file's text, decompressed where its name ends in ``.xz``; see `require_readable`.

    Args:
        largest: bytes that the file, and the text, may have.

    Raises:
        SparsegenError: ``error``: it is not to be read, cannot be, is not UTF-8, or is damaged where it is compressed.
    """
    require_readable(path, largest, error)
    try:
        data = path.read_bytes()
        if is_compressed(path):
            data = decompress(data, largest)
            _require_memory(path, len(data), error)
        return data.decode("utf-8")
    except OSError as reason:
        raise error(f"{path}: {reason.strerror}") from None
    except UnicodeDecodeError as reason:
        raise error(f"{path}: not UTF-8 text at byte {reason.start}") from None
    except ValueError as reason:
        raise error(f"{path}: {reason}") from None


def parse_json(text: str, source: str, error: type[SparsegenError] = ImportFileError) -> Node:
    """The root of a JSON text.

    Args:
        source: the file's name, for complaints.
        error: class of errors that this and every `Node` below it raises.

    Raises:
        SparsegenError: ``error``: not JSON, a name twice in one object, NaN or Infinity, nested too deeply.
    """

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            times = Counter(name for name, _ in pairs)
            twice = next(name for name, count in times.items() if count > 1)
            raise error(f"{source}: the name {_quoted(twice)} stands twice in one object")
        return fields

    def refuse(word: str) -> NoReturn:
        raise error(f"{source}: {word} is not a number that JSON has")

    try:
        root = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as reason:
        raise error(f"{source}: not valid JSON: {reason}") from None
    return Node(root, None, "$", source, error)


class Node:
    """A JSON value, the file's name, and the error to raise.

    Attributes:
        path: its place: ``$.measurements[3].config``. A file has many nodes and few complaints, so it is put together
            when it is asked for.
    """

    __slots__ = ("_above", "_step", "error", "source", "value")

    def __init__(
        self, value: Any, above: Node | None, step: str, source: str, error: type[SparsegenError]
    ) -> None:
        self.value, self._above, self._step = value, above, step
        self.source, self.error = source, error

    @property
    def path(self) -> str:
        return self._step if self._above is None else self._above.path + self._step

    def refuse(self, expected: str) -> NoReturn:
        """Raises the error with the path, what was expected and what is there."""
        raise self.error(f"{self.source}: {self.path}: expected {expected}, found {_shown(self.value)}")

    def fields(self, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Node]:
        """The members of an object: all required ones, perhaps optional ones, no others."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        unknown = set(self.value) - set(required) - set(optional)
        missing = set(required) - set(self.value)
        if unknown:
            self.refuse(f"no member {_quoted(sorted(unknown)[0])}")
        if missing:
            self.refuse(f"a member {sorted(missing)[0]!r}")
        return self.members()

    def members(self) -> dict[str, Node]:
        """The members of an object with any names."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        return {name: self._below(f".{_named(name)}", value) for name, value in self.value.items()}

    def items(self) -> Iterator[Node]:
        if not isinstance(self.value, list):
            self.refuse("an array")
        for i, value in enumerate(self.value):
            yield self._below(f"[{i}]", value)

    def _below(self, step: str, value: object) -> Node:
        return Node(value, self, step, self.source, self.error)

    def integer(self, low: int, high: int) -> int:
        if type(self.value) is not int or not low <= self.value <= high:
            self.refuse(f"an integer in [{low}, {high}]")
        return int(self.value)

    def number(self, low: float = 0.0, *, above: bool = False) -> float:
        """A finite number of at least ``low``, or more than it."""
        kind = f"a finite number {'>' if above else '>='} {low:g}"
        if type(self.value) not in (int, float):
            self.refuse(kind)
        try:
            value = float(self.value)
        except OverflowError:
            self.refuse(kind)
        if not math.isfinite(value) or value < low or (above and value == low):
            self.refuse(kind)
        return value

    def boolean(self) -> bool:
        if type(self.value) is not bool:
            self.refuse("true or false")
        return bool(self.value)

    def text(self, longest: int, pattern: str | None = None) -> str:
        """Printable text of at most ``longest`` characters that matches the pattern as a whole."""
        value = self.value
        if not isinstance(value, str) or len(value) > longest or printable(value) != value:
            self.refuse(f"printable text of at most {longest} characters")
        if pattern and not re.fullmatch(pattern, value):
            self.refuse(f"text like {pattern}")
        return value

    def moment(self) -> datetime:
        """An ISO 8601 time with its zone, not in the future (by more than a day: clocks differ)."""
        text = self.text(40)
        try:
            value = datetime.fromisoformat(text)
        except ValueError:
            self.refuse("an ISO 8601 time")
        if value.tzinfo is None:
            self.refuse("an ISO 8601 time with its zone")
        if not datetime(2020, 1, 1, tzinfo=UTC) <= value <= datetime.now(UTC) + timedelta(days=1):
            self.refuse("a time from 2020 to now")
        return value.astimezone(UTC)


def _shown(value: object) -> str:
    """The beginning of a value as JSON; no more of it is written out than is shown."""
    text = ""
    for piece in json.JSONEncoder().iterencode(value):
        text += piece[: LONGEST_SHOWN + 1]
        if len(text) > LONGEST_SHOWN:
            return text[: LONGEST_SHOWN - 3] + "..."
    return text


def _quoted(name: str) -> str:
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[: LONGEST_SHOWN - 3]}...")


def _named(name: str) -> str:
    """A member's name as it is, or in quotes where it is long or holds what a terminal would heed."""
    return name if len(name) <= LONGEST_SHOWN and name.isprintable() else _quoted(name)
