"""Matrix Market files (Boisvert, Pozo, Remington: The Matrix Market Exchange Formats, NISTIR 5935).

The numbers are read by `numpy.loadtxt`. SciPy's faster reader is not used: a zero byte or a last line without
its end makes it read outside its buffer (seen with SciPy 1.17), and it ignores what follows a number.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import check_shape
from sparsegen.matrix.foreign import Coordinates
from sparsegen.matrix.formats import Array
from sparsegen.matrix.readers.files import hint, read_text
from sparsegen.system.numpy_types import NumpyType

_FIELDS = {"real": "f8", "double": "f8", "integer": "i8", "unsigned-integer": "u8", "pattern": None}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_SIZE = re.compile(r"\d{1,18}", re.ASCII)
_LONGEST = 1000  # characters of the line of sizes
_AT_ONCE = 4096  # lines among which one that cannot be read is looked for


class _Header(NamedTuple):
    """Contents of the lines before the entries; ``lines`` is their number, ``start`` their length in bytes."""

    path: Path
    coordinate: bool
    field: str
    symmetry: str
    shape: tuple[int, int]
    entries: int
    lines: int
    start: int

    @property
    def row_type(self) -> NumpyType:
        """One entry's numbers."""
        value = _FIELDS[self.field]
        fields = [("row", "i8"), ("column", "i8")] if self.coordinate else []
        return np.dtype(fields + ([] if value is None else [("value", value)]))


def read_matrix_market(path: Path, budget: MemoryBudget) -> Array | Coordinates:
    """Coordinate or dense files; symmetric ones are expanded, pattern ones get values of 1 (float32).

    Raises:
        MatrixError: with the line, for a malformed, complex, or too large matrix.
    """
    content = read_text(path, budget)
    header = _read_header(path, content)
    mirrored = 1 if header.symmetry == "general" else 2
    nonzeros, place = mirrored * min(header.entries, _most_entries(header, content)), f"line {header.lines}"
    budget.require_matrix((0, 0), nonzeros, place)
    entries = _read_entries(header, content)
    budget.require_matrix(header.shape, nonzeros, place)
    return _coordinates(header, entries, content) if header.coordinate else _dense(header, entries["value"])


def _read_header(path: Path, content: bytes) -> _Header:
    def refuse(message: str, line: int) -> MatrixError:
        return MatrixError(message, source=path, place=f"line {line}")

    stream = io.BytesIO(content)
    banner = stream.readline(200).decode("latin-1").lower().split()
    if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5:
        raise refuse(
            f"expected '%%MatrixMarket matrix FORMAT FIELD SYMMETRY'{hint(content)}",
            1,
        )
    form, field, symmetry = banner[2:]
    for word, known in ((form, ("coordinate", "array")), (field, tuple(_FIELDS)), (symmetry, _SYMMETRIES)):
        if word not in known:
            real = "; store the real part" if word in ("complex", "hermitian") else ""
            raise refuse(f"{word!r} is not supported; there are {', '.join(known)}{real}", 1)
    lines, text = 2, stream.readline()
    while text and (not text.strip() or text.startswith(b"%")):
        lines, text = lines + 1, stream.readline()
    words = text[:_LONGEST].decode("latin-1").split()
    names = ("rows", "columns", "entries") if form == "coordinate" else ("rows", "columns")
    if len(words) != len(names) or not all(_SIZE.fullmatch(word) for word in words):
        raise refuse(f"expected {len(names)} sizes: {' '.join(names)}", lines)
    shape = check_shape([int(word) for word in words[:2]], source=f"{path}, line {lines}")
    if symmetry != "general" and shape[0] != shape[1]:
        raise refuse(f"a {symmetry} matrix must be square, got shape {shape}", lines)
    if form == "array" and field == "pattern":
        raise refuse("a pattern has no values to store in an array", 1)
    n = shape[0]
    full = {
        "general": n * shape[1],
        "symmetric": n * (n + 1) // 2,
        "skew-symmetric": n * (n - 1) // 2,
    }[symmetry]
    entries = int(words[2]) if form == "coordinate" else full
    return _Header(path, form == "coordinate", field, symmetry, shape, entries, lines, stream.tell())


def _read_entries(header: _Header, content: bytes) -> Array:
    """A structured array of the entries, as many as the header declares."""
    most = min(header.entries, _most_entries(header, content)) + 1  # one too many says as much as all of them
    if any(line.strip() for line in _body(header, content)):
        try:
            with warnings.catch_warnings(action="ignore"):  # max_rows counts no blank lines
                entries = np.loadtxt(
                    _body(header, content),
                    dtype=header.row_type,
                    comments=None,
                    ndmin=1,
                    max_rows=most,
                )
        except ValueError as error:
            raise _first_bad_line(header, content) from error
    else:
        entries = np.empty(0, header.row_type)
    if entries.size != header.entries:
        found = "more" if entries.size > header.entries else str(entries.size)
        raise MatrixError(
            f"{header.entries} entries are declared, but {found} are there; "
            "the file is truncated or its header wrong",
            source=header.path,
            place=f"line {header.lines}",
        )
    return entries


def _body(header: _Header, content: bytes) -> IO[str]:
    """The lines of the entries."""
    stream = io.BytesIO(content)  # shares the bytes
    stream.seek(header.start)
    return io.TextIOWrapper(stream, encoding="latin-1", newline="\n")


def _numbered(header: _Header, content: bytes) -> Iterator[tuple[int, str]]:
    """The lines of the entries that are not blank, with their numbers in the file."""
    numbered = enumerate(_body(header, content), start=header.lines + 1)
    return ((number, line) for number, line in numbered if line.strip())


def _most_entries(header: _Header, content: bytes) -> int:
    """Upper bound on the number of entries: each takes at least a digit and a blank."""
    return (len(content) - header.start) // 2 + 1


def _first_bad_line(header: _Header, content: bytes) -> MatrixError:
    """Reads again what `numpy.loadtxt` refused, to say where."""
    lines = _numbered(header, content)
    while some := list(islice(lines, _AT_ONCE)):
        if _is_sound(header, [line for _, line in some]):
            continue
        number, line = next((number, line) for number, line in some if not _is_sound(header, [line]))
        names = ", ".join(header.row_type.names or ())
        message = f"expected {names} ({header.field}), got {line.strip()[:60]!r}"
        return MatrixError(message, source=header.path, place=f"line {number}")
    return MatrixError("the entries cannot be read", source=header.path)


def _is_sound(header: _Header, lines: list[str]) -> bool:
    try:
        np.loadtxt(lines, dtype=header.row_type, comments=None)
    except ValueError:
        return False
    return True


def _coordinates(header: _Header, entries: Array, content: bytes) -> Coordinates:
    rows, columns = entries["row"] - 1, entries["column"] - 1  # the file counts from 1
    outside = (rows < 0) | (rows >= header.shape[0]) | (columns < 0) | (columns >= header.shape[1])
    if outside.any():
        at = int(outside.argmax())
        line, _ = next(islice(_numbered(header, content), at, None))
        raise MatrixError(
            f"row {rows[at] + 1}, column {columns[at] + 1} is outside the shape {header.shape}",
            source=header.path,
            place=f"line {line}",
        )
    values = np.ones(rows.size, np.float32) if header.field == "pattern" else entries["value"]
    if header.symmetry != "general":
        below = rows != columns
        if header.symmetry == "skew-symmetric":
            if values[~below].any():
                raise MatrixError(
                    "a skew-symmetric matrix has no nonzero on its diagonal", source=header.path
                )
            values = values.astype(np.float64)  # unsigned integers have no negatives
        mirrored = values[below] if header.symmetry == "symmetric" else -values[below]
        rows, columns, values = (
            np.concatenate((rows, columns[below])),
            np.concatenate((columns, rows[below])),
            np.concatenate((values, mirrored)),
        )
    return Coordinates(header.shape, rows, columns, values)


def _dense(header: _Header, values: Array) -> Array:
    """Values of an array file, which go down the columns; of a symmetric one only the lower triangle's."""
    if header.symmetry == "general":
        return values.reshape(header.shape, order="F")
    skew = header.symmetry == "skew-symmetric"
    values = values.astype(np.float64) if skew else values  # unsigned integers have no negatives
    columns, rows = np.triu_indices(header.shape[0], k=1 if skew else 0)
    dense = np.zeros(header.shape, dtype=values.dtype)
    dense[columns, rows] = -values if skew else values
    dense[rows, columns] = values
    return dense
