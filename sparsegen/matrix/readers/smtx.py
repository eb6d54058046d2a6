"""Files of the Deep Learning Matrix Collection (Gale et al., Sparse GPU Kernels for Deep Learning, 2020).

Three lines of text: ``rows, columns, nonzeros``; the row offsets; the column indices. There are no values.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import check_shape
from sparsegen.matrix.foreign import Compressed
from sparsegen.matrix.formats import Array
from sparsegen.matrix.generators import normal_values
from sparsegen.matrix.readers.files import check_readable, hint, read_first_line, read_text

_INTEGER = re.compile(rb"[+-]?\d{1,18}")
_LONGEST = 200  # characters of the first line
_BLANKS = np.frombuffer(b" \t\n\r\v\f", dtype=np.uint8)


def read_smtx(path: Path, seed: int, budget: MemoryBudget) -> Compressed:
    """The pattern, with standard normal float32 values drawn from ``seed``, none of them zero.

    Raises:
        MatrixError: with the line and the number in it, for what is malformed.
    """
    content = read_text(path, budget)
    header, offsets_line, indices_line, rest = (*content.split(b"\n", 3), b"", b"", b"")[:4]
    if rest.strip():
        number = 4 + rest[: len(rest) - len(rest.lstrip())].count(b"\n")
        raise MatrixError("a .smtx file has three lines", source=path, place=f"line {number}")
    shape, nnz = _sizes(path, header)
    there = _count(indices_line)
    if there != nnz:
        raise MatrixError(
            f"line 1 declares {nnz} nonzeros, but there are {there} column indices; "
            "the file is truncated or its header wrong",
            source=path,
            place="line 3",
        )
    if (there := _count(offsets_line)) != shape[0] + 1:
        raise MatrixError(
            f"{shape[0]} rows need {shape[0] + 1} offsets, got {there}",
            source=path,
            place="line 2, row_offsets",
        )
    budget.require_matrix(shape, nnz, "line 1")
    offsets = _integers(path, 2, offsets_line)
    indices = _integers(path, 3, indices_line)
    values = normal_values(nnz, np.random.default_rng(seed))
    return Compressed("csr", shape, offsets, indices, values, "line 2, row_offsets", "line 3, column_indices")


def read_smtx_shape(path: Path) -> tuple[int, int]:
    """Rows and columns from the first line alone.

    Raises:
        MatrixError: the file cannot be read, or its first line is malformed.
    """
    check_readable(path)
    shape, _ = _sizes(path, read_first_line(path, limit=_LONGEST))
    return shape


def _sizes(path: Path, header: bytes) -> tuple[tuple[int, int], int]:
    """The shape and the number of nonzeros."""
    sizes = header[:_LONGEST].replace(b",", b" ").split()
    if len(sizes) != 3 or not all(_INTEGER.fullmatch(size) for size in sizes):
        raise MatrixError(f"expected 'rows, columns, nonzeros'{hint(header)}", source=path, place="line 1")
    rows, columns, nnz = map(int, sizes)
    return check_shape((rows, columns), source=f"{path}, line 1"), nnz


def _count(line: bytes) -> int:
    """Counts words, without an object for each."""
    is_blank = np.isin(np.frombuffer(line, dtype=np.uint8), _BLANKS)
    starts = np.count_nonzero(is_blank[:-1] & ~is_blank[1:])
    return int(starts) + bool(is_blank.size and not is_blank[0])


def _integers(path: Path, number: int, line: bytes) -> Array:
    """The int64 numbers of one line."""
    tokens = line.split()
    try:
        if b"_" not in line:  # int() would take 1_000
            return np.array(list(map(int, tokens)), dtype=np.int64)
    except (ValueError, OverflowError):
        pass
    at = next(i for i, token in enumerate(tokens) if not _INTEGER.fullmatch(token))
    raise MatrixError(
        f"{tokens[at][:20].decode('latin-1')!r} is no 64-bit integer",
        source=path,
        place=f"line {number}, number {at + 1}",
    )
