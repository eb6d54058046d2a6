"""Matrix Market files (Boisvert, Pozo, Remington: The Matrix Market Exchange Formats, NISTIR 5935).

The numbers are read by `numpy.loadtxt`. SciPy's faster reader is not used: a zero byte or a last line without
its end makes it read outside its buffer (seen with SciPy 1.17), and it ignores what follows a number.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import check_shape
from sparsegen.matrix.formats import Array, Coordinates
from sparsegen.matrix.readers.files import hint, read_text

_FIELDS = {"real": "f8", "double": "f8", "integer": "i8", "pattern": None}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_SIZE = re.compile(r"\d{1,18}")


@dataclass(frozen=True, slots=True)
class _Header:
    """What the lines before the entries say; ``lines`` is their number, ``start`` their length in bytes."""

    path: Path
    coordinate: bool
    field: str
    symmetry: str
    shape: tuple[int, int]
    entries: int
    lines: int
    start: int

    @property
    def row_type(self) -> np.dtype[Any]:
        """One entry's numbers."""
        value = _FIELDS[self.field]
        fields = [("row", "i8"), ("column", "i8")] if self.coordinate else []
        return np.dtype(fields + ([] if value is None else [("value", value)]))


def read_matrix_market(path: Path) -> Array | Coordinates:
    """Coordinate or dense files; symmetric ones are expanded, pattern ones get values of 1 (float32).

    Raises:
        MatrixError: with the line, for a malformed, complex, or too large matrix.
    """
    content = read_text(path)
    header = _read_header(path, content)
    entries = _read_entries(header, content)
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
    words = text.decode("latin-1").split()
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
    body = content[header.start :].decode("latin-1")
    if body.strip():
        try:
            entries = np.loadtxt(io.StringIO(body), dtype=header.row_type, comments=None, ndmin=1)
        except ValueError as error:
            raise _first_bad_line(header, body) from error
    else:
        entries = np.empty(0, header.row_type)
    if entries.size != header.entries:
        raise MatrixError(
            f"{header.entries} entries are declared, but {entries.size} are there; "
            "the file is truncated or its header wrong",
            source=header.path,
            place=f"line {header.lines}",
        )
    return entries


def _first_bad_line(header: _Header, body: str) -> MatrixError:
    """Reads line by line, slowly, what `numpy.loadtxt` refused, to say where."""
    for number, line in enumerate(body.split("\n"), start=header.lines + 1):
        if line.strip():
            try:
                np.loadtxt(io.StringIO(line), dtype=header.row_type, comments=None)
            except ValueError:
                names = ", ".join(header.row_type.names or ())
                message = f"expected {names} ({header.field}), got {line.strip()[:60]!r}"
                return MatrixError(message, source=header.path, place=f"line {number}")
    return MatrixError("the entries cannot be read", source=header.path)


def _coordinates(header: _Header, entries: Array, content: bytes) -> Coordinates:
    rows, columns = entries["row"] - 1, entries["column"] - 1  # the file counts from 1
    outside = (rows < 0) | (rows >= header.shape[0]) | (columns < 0) | (columns >= header.shape[1])
    if outside.any():
        at = int(outside.argmax())
        body = content[header.start :].split(b"\n")
        numbers = (n for n, line in enumerate(body, start=header.lines + 1) if line.strip())
        line = next(number for entry, number in enumerate(numbers) if entry == at)
        raise MatrixError(
            f"row {rows[at] + 1}, column {columns[at] + 1} is outside the shape {header.shape}",
            source=header.path,
            place=f"line {line}",
        )
    values = np.ones(rows.size, np.float32) if header.field == "pattern" else entries["value"]
    if header.symmetry != "general":
        below = rows != columns
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
    columns, rows = np.triu_indices(header.shape[0], k=1 if skew else 0)
    dense = np.zeros(header.shape, dtype=values.dtype)
    dense[columns, rows] = -values if skew else values
    dense[rows, columns] = values
    return dense
