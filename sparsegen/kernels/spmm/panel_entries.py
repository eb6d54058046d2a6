"""The order of nonzeros that stream past panels of B in shared memory (`panel_spmm`): NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.threads import in_threads

CHUNK_BYTES = 16  # bytes of one load from shared memory
BANK_BYTES = 128  # shared memory's 32 banks of 4 bytes
ENTRIES = 1 << 17  # entries that are put in order together


class Reading(NamedTuple):
    """Access pattern of a warp's threads to the rows of a panel.

    Attributes:
        row_bytes: bytes of a panel's row.
        threads_per_row: threads that share a group of rows of A.
        row_splits: sets of these threads that take every ``row_splits``-th step of entries.
        step: entries that a thread takes together.
    """

    row_bytes: int
    threads_per_row: int
    row_splits: int
    step: int

    @property
    def classes(self) -> int:
        """Rows of a panel that meet different banks; fewer than 2 where a row has all of them."""
        return min(self.step, BANK_BYTES // self.row_bytes)

    @property
    def thread_chunks(self) -> int:
        """Chunks of a row that each thread of a set reads."""
        return self.row_bytes // CHUNK_BYTES // (self.threads_per_row // self.row_splits)


def entries_by_panel(
    rows_per_group: int, panel_k: int, matrix: CsrMatrix, order: Array, panels: int
) -> tuple[Array, Array, Array]:
    """Entries (columns of groups of rows) by group, panel and column.

    Returns:
        Their columns, their runs (group · panels + panel), and per entry and row of the group the number of
        the nonzero in CSR order, or -1.
    """
    lengths = np.diff(matrix.row_offsets)[order]
    first = np.cumsum(lengths) - lengths
    to_source = np.repeat((matrix.row_offsets[:-1][order] - first).astype(np.int32), lengths)
    nonzeros = np.arange(matrix.nnz, dtype=np.int32) + to_source
    wide = order.size * max(panels, matrix.shape[1] + 1) > np.iinfo(np.int32).max
    places = np.repeat(np.arange(order.size, dtype=np.int64 if wide else np.int32), lengths)
    columns = matrix.column_indices[nonzeros]
    if rows_per_group == 1:
        return columns, places * panels + columns // panel_k, nonzeros[:, None]
    width = matrix.shape[1] + 1
    keys, entry = np.unique(places // rows_per_group * width + columns, return_inverse=True)
    source = np.full((keys.size, rows_per_group), -1, dtype=np.int32)
    source[entry, places % rows_per_group] = nonzeros
    group, column = keys // width, keys % width
    return column, group * panels + column // panel_k, source


def bank_order(reading: Reading, rows: Array, runs: Array, panels: int) -> Array | None:
    """An order of the entries in which the sets of threads that load together meet in different banks.

    Where a panel's row is shorter than the 128 bytes of a bank cycle, rows of B fall into 2 or 4 classes by
    the banks that they lie in. Neighbouring sets already start at different chunks of a row, so that as many
    sets as a thread has chunks may share a class; set s takes class (i + s / chunks) mod classes in its i-th
    place, as far as a run's entries allow. None: nothing to gain.

    Args:
        rows: row of each entry, within its panel.
        runs: run of each entry, rising: group · panels + panel.
    """
    classes = reading.classes
    if classes < 2 or rows.size == 0:
        return None
    run_lengths = np.bincount(runs)
    ends = np.cumsum(run_lengths)
    firsts = np.unique(np.searchsorted(ends, np.arange(0, rows.size, ENTRIES), side="right"))
    order = np.empty(rows.size, dtype=np.int64)

    def lay(pieces: tuple[int, int]) -> None:
        """Runs whose entries fit in a cache, from one up to another."""
        first, last = pieces
        lengths = run_lengths[first:last]
        begin, end = int(ends[first] - lengths[0]), int(ends[last - 1])
        places = _bank_places(reading, rows[begin:end] % classes, lengths, np.arange(first, last) // panels)
        order[places + begin] = np.arange(begin, end)

    in_threads(lay, list(zip(firsts, np.append(firsts[1:], ends.size), strict=True)))
    return order


def _bank_places(reading: Reading, kinds: Array, lengths: Array, groups: Array) -> Array:
    """The place of each entry among those of some runs.

    Args:
        kinds: class of each entry's row.
        lengths, groups: for each run, its entries and the number of its group.
    """
    classes, splits = reading.classes, reading.row_splits
    starts, numbers = np.cumsum(lengths) - lengths, np.arange(kinds.size)
    before = np.zeros((classes, kinds.size + 1), dtype=np.int64)
    for kind in range(classes):
        np.cumsum(kinds == kind, out=before[kind, 1:])
    first = before[:, starts]
    fewest = (before[:, starts + lengths] - first).min(axis=0)  # entries that every class of a run has
    of_kind = kinds * np.int64(before.shape[1])
    of_kind += numbers
    rank = before.ravel()[of_kind]  # rank of an entry among those of its run and class
    run = np.repeat(np.arange(lengths.size), lengths)
    rank -= first.T.ravel()[run * classes + kinds]
    sets = (groups % (32 // reading.threads_per_row) * splits)[:, None] + np.arange(splits)
    turns = (-(sets // reading.thread_chunks) % classes).ravel()  # places by which classes are shifted
    split = rank * classes // reading.step % splits if splits > 1 else 0
    place: Array = (kinds + turns[run * splits + split]) % classes
    place += rank * classes
    place += starts[run]
    unmatched = np.flatnonzero(rank >= fewest[run])
    of_unmatched = run[unmatched]
    earlier = np.searchsorted(unmatched, starts)[of_unmatched]
    place[unmatched] = (starts + classes * fewest)[of_unmatched] + np.arange(unmatched.size) - earlier
    return place
