"""Row order and alignment, as the SpMM families share them: NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.system.integers import ceil_div, round_up


class AlignedRows(NamedTuple):
    """Runs of nonzeros padded to whole vectors.

    Attributes:
        offsets: int32, where each run starts, and the end of the last.
        source: int32, for each stored place the nonzero's number in CSR order, or -1 for padding.
    """

    offsets: Array
    source: Array

    def gather_repeating(self, per_nonzero: Array) -> Array:
        """An array over nonzeros, laid out; the padding repeats the last nonzero before it.

        Padded column indices then point at a row of B that the run needs anyway: no extra memory traffic, and
        a non-finite value elsewhere in B cannot leak in through 0 · Inf.
        """
        if per_nonzero.size == 0:
            return np.zeros(self.source.shape, dtype=per_nonzero.dtype)
        found: Array = per_nonzero[self.source]
        padding = np.flatnonzero(self.source < 0)
        if padding.size:
            begins = np.where(np.diff(padding, prepend=-1) > 1, padding, 0)  # starts of padding
            latest = np.maximum.accumulate(begins) - 1
            found[padding] = np.where(latest >= 0, found[latest], per_nonzero[0])
        return found


def align_runs(lengths: Array, starts: Array, alignment: int, tail: int) -> AlignedRows:
    """Lay runs of nonzeros one after the other, each padded to a multiple of ``alignment``.

    Args:
        lengths, starts: length and start of each run, in nonzeros of CSR order.
        tail: the whole is padded to a multiple of it, and holds at least that many places.

    Raises:
        MatrixError: padded, the nonzeros pass the 32-bit range of the kernels' offsets.
    """
    padded = round_up(lengths.astype(np.int64), alignment)
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(padded, out=offsets[1:])
    total = max(tail, round_up(int(offsets[-1]), tail))
    if total > MAX_INDEX:
        raise MatrixError(
            f"{int(lengths.sum())} nonzeros take {total} places when padded to vectors of {alignment}, more than "
            f"32-bit offsets reach ({MAX_INDEX}); split the matrix by rows"
        )
    source = np.full(total, -1, dtype=np.int32)
    number = np.arange(int(lengths.sum()), dtype=np.int32)  # 32 bits, which are enough, take half the time
    first = np.cumsum(lengths) - lengths
    to_place, to_source = (np.repeat((x - first).astype(np.int32), lengths) for x in (offsets[:-1], starts))
    source[number + to_place] = number + to_source
    return AlignedRows(offsets.astype(np.int32), source)


def align_rows(matrix: CsrMatrix, alignment: int, *, tail: int) -> AlignedRows:
    """The rows of a matrix in their order, each padded to a multiple of ``alignment`` nonzeros."""
    offsets = matrix.row_offsets.astype(np.int64)
    return align_runs(np.diff(offsets), offsets[:-1], alignment, tail)


def order_rows(lengths: Array, order: str, bundle: int) -> Array:
    """The rows in the order in which blocks take them (row swizzle; Gale et al., section V-C).

    Args:
        lengths: nonzeros per row.
        order: ``natural``; ``binned``: bundles of neighbouring rows, the longest first; ``sorted``: by falling length;
            ``local``: natural, or from the last row to the first if the latter half has more nonzeros.
        bundle: rows per block.
    """
    rows = np.arange(lengths.size, dtype=np.int32)
    if order == "natural":
        return rows
    if order == "local":
        half = rows.size // 2
        return rows if lengths[:half].sum() >= lengths[half:].sum() else rows[::-1].copy()
    if order == "sorted":
        return np.argsort(-lengths, kind="stable").astype(np.int32)
    bundles = ceil_div(rows.size, bundle)
    key = np.full(bundles * bundle, -1, dtype=np.int64)
    key[: rows.size] = lengths
    rank = np.argsort(-key.reshape(bundles, bundle).max(axis=1), kind="stable")
    padded = np.full(bundles * bundle, -1, dtype=np.int32)
    padded[: rows.size] = rows
    result = padded.reshape(bundles, bundle)[rank].ravel()
    return result[result >= 0]
