"""Matrix Market files (Boisvert, Pozo, Remington: NISTIR 5935), read by SciPy's fast_matrix_market."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse

from sparsegen.csr import check_shape
from sparsegen.errors import MatrixError
from sparsegen.formats import Array, Coordinates
from sparsegen.readers.files import hint, read_text

_LINE = re.compile(r"Line (\d+): *(.*)", re.DOTALL)


def read_matrix_market(path: Path) -> Array | Coordinates:
    """Coordinate or dense files; symmetric ones are expanded, pattern ones get values of 1 (float32).

    Raises:
        MatrixError: with the line, for a malformed, complex, or too large matrix.
    """
    content = read_text(path)
    if not content.startswith(b"%%MatrixMarket"):
        raise MatrixError(
            f"a Matrix Market file starts with %%MatrixMarket{hint(content)}", source=path, place="line 1"
        )
    try:
        info = scipy.io.mminfo(io.BytesIO(content))
        _check_header(path, info, len(content))
        matrix: Any = scipy.io.mmread(io.BytesIO(content))
    except (ValueError, OverflowError) as error:
        found = _LINE.fullmatch(str(error))
        message, place = (found[2], f"line {found[1]}") if found else (str(error), None)
        raise MatrixError(message.strip().rstrip("."), source=path, place=place) from error
    if not scipy.sparse.issparse(matrix):
        return np.asarray(matrix)
    values = matrix.data.astype(np.float32) if info[4] == "pattern" else matrix.data
    return Coordinates(matrix.shape, matrix.row, matrix.col, values)


def _check_header(path: Path, info: tuple[int, int, int, str, str, str], size: int) -> None:
    """The header's promises against the 32-bit range and the size in bytes of the text."""
    rows, columns, entries, form, field, symmetry = info
    check_shape((rows, columns), source=str(path))
    if field == "complex":
        raise MatrixError(
            "complex values are not supported; store the real part", source=path, place="line 1"
        )
    if form == "array":
        entries = rows * columns if symmetry == "general" else rows * (rows - 1) // 2
        shortest = len("0\n")
    else:
        shortest = len("1 1\n") if field == "pattern" else len("1 1 0\n")
    if entries * shortest > size + 1:  # the last line may lack its end
        raise MatrixError(
            f"the header declares {entries} entries, more than {size} bytes of text can hold; "
            "the file is truncated or its header wrong",
            source=path,
            place="size line",
        )
