"""The ELL format, as the families for uniform sparsity share it: NumPy only."""

from __future__ import annotations

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.kernels.base import Constraint
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.system.integers import round_up

MOST_PADDING = 2  # places of ELL for each nonzero


def padding_requirement(features: Features) -> Constraint:
    """Requires that ELL with rows padded to the longest represents the matrix sensibly."""
    places = features.m * features.row_max
    return Constraint(
        places <= MOST_PADDING * features.nnz,
        f"rows padded to the longest ({features.row_max} nonzeros) take at most {MOST_PADDING} places "
        f"({places} in all) for each nonzero ({features.nnz})",
    )


def places_in_rows(matrix: CsrMatrix) -> Array:
    """The number of nonzeros before each nonzero in its row, int32."""
    starts, lengths = matrix.row_offsets[:-1], np.diff(matrix.row_offsets)
    places: Array = np.arange(matrix.nnz, dtype=np.int32) - np.repeat(starts, lengths)
    return places


def ell_sources(matrix: CsrMatrix, rows: int, width: int, places: Array) -> Array:
    """Returns the nonzero at each place of an ELL layout.

    Args:
        rows: rows of the padded matrix, at least m.
        width: places of a row; nonzeros whose place is beyond are left out.
        places: place of each nonzero in its row, int32, no two alike.

    Returns:
        int32 [rows, width]: a nonzero's number in CSR order, or -1 for padding.

    Raises:
        MatrixError: with the nonzeros left out there are more places than 32-bit offsets reach.
    """
    beyond = int(np.count_nonzero(places >= width))
    if rows * width + beyond > MAX_INDEX:
        raise MatrixError(
            f"ELL with {rows} rows of {width} places, and {beyond} nonzeros beyond, is more than 32-bit offsets reach "
            f"({MAX_INDEX}); split the matrix by rows, or use csr_spmm"
        )
    source = np.full(rows * width, -1, dtype=np.int32)
    inside = slice(None) if beyond == 0 else np.flatnonzero(places < width)
    first = np.arange(matrix.shape[0], dtype=np.int32) * np.int32(width)  # place of each row
    numbers = np.arange(matrix.nnz, dtype=np.int32)
    source[(np.repeat(first, np.diff(matrix.row_offsets)) + places)[inside]] = numbers[inside]
    return source.reshape(rows, width)


def gather_repeating(matrix: CsrMatrix, per_nonzero: Array, source: Array) -> Array:
    """An array over nonzeros (column indices), laid out as `ell_sources` says.

    Padding repeats the first nonzero of its own row, so that it causes no further memory traffic, and a non-finite
    value elsewhere in B cannot leak in through 0 · Inf; in rows without nonzeros it is 0 (see `filled_rows`).
    """
    if matrix.nnz == 0:
        return np.zeros(source.shape, dtype=per_nonzero.dtype)
    starts, ends = matrix.row_offsets[:-1], matrix.row_offsets[1:]
    own = np.zeros(source.shape[0], dtype=per_nonzero.dtype)
    own[: starts.size] = np.where(starts < ends, per_nonzero[np.minimum(starts, matrix.nnz - 1)], 0)
    return np.where(source >= 0, per_nonzero[source], own[:, None])


def filled_rows(matrix: CsrMatrix, rows: int) -> Array:
    """Returns a bit for each of ``rows`` rows, set if the row has nonzeros: uint32, bit i of word j for row 32 · j + i.

    The padding of an empty row points at an arbitrary row of B; kernels discard such sums.
    """
    filled = np.zeros(round_up(max(1, rows), 32), dtype=bool)
    filled[: matrix.shape[0]] = np.diff(matrix.row_offsets) > 0
    words: Array = np.packbits(filled, bitorder="little").view(np.uint32)
    return words


def interleave_classes(offsets: Array, kinds: Array, classes: int, shifts: Array) -> Array:
    """Assigns places in rows such that the classes of nonzeros take turns, as far as a row has enough of each.

    Args:
        offsets: row offsets, as in CSR.
        kinds: the class of each nonzero, 0 to classes - 1; at most 64 classes.
        shifts: shift of each row: class (place + shift) mod classes has its turn at a place.

    Returns:
        For each nonzero its place in its row, int32. Places of a class that a row has too few of go, in order, to
        those nonzeros that their own class has no place for.
    """
    lengths = np.diff(offsets)
    kinds = kinds.astype(np.int8)  # one byte each: what follows is bound by memory
    places = np.empty(kinds.size, dtype=np.int32)
    for kind in range(classes):
        members = np.flatnonzero(kinds == kind)
        first = np.searchsorted(members, offsets).astype(np.int32)  # first one of each row
        # A nonzero's rank among those of its row and class.
        places[members] = np.arange(members.size, dtype=np.int32) - np.repeat(first[:-1], np.diff(first))
    places *= classes
    places += (kinds - np.repeat((shifts % classes).astype(np.int8), lengths)) % np.int8(classes)
    starts, fits = np.repeat(offsets[:-1], lengths), places < np.repeat(lengths, lengths)
    taken = np.zeros(kinds.size, dtype=bool)
    taken[(starts + places)[fits]] = True
    places[~fits] = np.flatnonzero(~taken) - starts[~fits]  # as many free as lack one in each row
    return places
