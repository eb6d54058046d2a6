"""Assigns rows to lanes of the lane streams, so that the lanes of a warp have equally many nonzeros.

Streams of a warp are as long as that of its fullest lane, in every run of tiles. Rows of different lengths are the
greater part of what makes them differ; where in its row a nonzero stands is the rest.
"""

from __future__ import annotations

import numpy as np

from sparsegen.kernels.layouts.lane_stream import LANES, PAIR, TILE, Partition
from sparsegen.matrix.formats import Array, CsrMatrix

EXCHANGES = 24  # exchanges of rows within a strip by their lengths, at most
TRIALS = 400  # exchanges tried in each strip by what lanes have in each run: 0.1 s for 4096 rows
LONG_RUN = 1000  # mean elements of a lane in a run from which on that is not worth its time
OCTET = 8  # columns of a tile that one lane has of a row
PLACES = 8  # in a strip: rows of its tiles that have the same g belong to the same four lanes


def levelled_rows(matrix: CsrMatrix, partition: Partition) -> Array:
    """`balanced_rows`, and where runs are short also levelled by what each lane has in each run.

    In turn for each run a row of its fullest lane's place is exchanged with one of another place in the strip, and left
    there if the strip's streams do not become longer in all. The order is the same for equal patterns.
    """
    rows = balanced_rows(np.diff(matrix.row_offsets), partition)
    lanes = partition.used_blocks * partition.warps * LANES
    if 0 < matrix.nnz < LONG_RUN * lanes:
        places = rows.reshape(-1, TILE)
        _level(places, _in_runs(matrix, partition, places))
    return rows


def balanced_rows(lengths: Array, partition: Partition) -> Array:
    """An order of the rows in which lanes, warps and blocks have about equally many nonzeros.

    Rows by falling length are distributed to the strips of 32 rows, to and fro. In a strip, longest first, each goes to
    that of the 8 places g (whose four rows share lanes) that has the fewest nonzeros so far and is not full. Then rows
    of the fullest and the emptiest place are exchanged as long as that levels them.

    Returns:
        int32: for each place the row; places beyond the matrix have row ``m`` or more.
    """
    strips = partition.groups * partition.warps_m
    padded = np.zeros(strips * TILE, dtype=np.int64)
    padded[: lengths.size] = lengths
    distributed = np.argsort(-padded, kind="stable").astype(np.int32).reshape(TILE, strips)
    distributed[1::2] = distributed[1::2, ::-1]
    share = TILE // PLACES
    places = np.empty((strips, share, PLACES), dtype=np.int32)
    held, taken = np.zeros((strips, PLACES), dtype=np.int64), np.zeros((strips, PLACES), dtype=np.int64)
    strip = np.arange(strips)
    for row in distributed:
        emptiest = np.where(taken < share, held, np.iinfo(np.int64).max).argmin(axis=1)
        places[strip, taken[strip, emptiest], emptiest] = row
        held[strip, emptiest] += padded[row]
        taken[strip, emptiest] += 1
    for _ in range(EXCHANGES):
        _exchange(places, padded, held)
    return places.reshape(-1)


def _exchange(places: Array, lengths: Array, held: Array) -> None:
    """Exchanges in each strip those rows of the fullest and the emptiest place that level the two best."""
    strip, share = np.arange(held.shape[0]), places.shape[1]
    full, empty = held.argmax(axis=1), held.argmin(axis=1)
    surplus = held[strip, full] - held[strip, empty]
    from_full, from_empty = places[strip, :, full], places[strip, :, empty]
    moved = lengths[from_full][:, :, None] - lengths[from_empty][:, None, :]
    best = np.abs(2 * moved - surplus[:, None, None]).reshape(-1, share * share).argmin(axis=1)
    i, j = np.divmod(best, share)
    moved = moved[strip, i, j]
    levels = (moved > 0) & (moved < surplus)
    strip, i, j, full, empty, moved = (a[levels] for a in (strip, i, j, full, empty, moved))
    places[strip, i, full], places[strip, j, empty] = places[strip, j, empty], places[strip, i, full]
    held[strip, full] -= moved
    held[strip, empty] += moved


def _in_runs(matrix: CsrMatrix, partition: Partition, places: Array) -> Array:
    """int32 [strips, places, runs, 4]: nonzeros of each row in each run of its warps, for each of 4 lanes."""
    p, (m, _) = partition, matrix.shape
    octets = p.steps * p.warps_k * (p.step_columns // OCTET)
    # One row more for places beyond the matrix.
    counted = np.zeros((m + 1, octets), dtype=np.uint8)
    rows_at_once = max(1, (1 << 22) // octets)
    for first in range(0, m, rows_at_once):
        offsets = matrix.row_offsets[first : min(first + rows_at_once, m) + 1]
        lengths = np.diff(offsets)
        octet = matrix.column_indices[offsets[0] : offsets[-1]] // OCTET
        octet += np.repeat(np.arange(lengths.size, dtype=np.int32) * np.int32(octets), lengths)
        found = np.bincount(octet, minlength=lengths.size * octets)
        counted[first : first + lengths.size] = found.reshape(lengths.size, octets)
    group_of_step = np.arange(p.total) // p.steps
    block_of_step = np.searchsorted(p.begins(), np.arange(p.total), side="right") - 1
    run_of_step = block_of_step - block_of_step[group_of_step * p.steps]
    in_runs = np.zeros((*places.shape, int(run_of_step.max()) + 1, p.warps_k, 4), dtype=np.int32)
    for group in range(p.groups):
        strips = slice(group * p.warps_m, (group + 1) * p.warps_m)
        begins = np.flatnonzero(np.diff(run_of_step[group * p.steps : (group + 1) * p.steps], prepend=-1))
        rows = counted[np.minimum(places[strips], m)]
        tiles = rows.reshape(p.warps_m, TILE, p.steps, p.warps_k, p.tiles, 4)
        steps = tiles.sum(axis=4, dtype=np.int32)
        in_runs[strips, :, : begins.size] = np.add.reduceat(steps, begins, axis=2)
    return in_runs.reshape(*places.shape, -1, 4)


def _level(places: Array, in_runs: Array) -> None:
    strips, height, runs, _ = in_runs.shape
    share = height // PLACES
    strip, rng = np.arange(strips), np.random.default_rng(0)
    held = in_runs.reshape(strips, share, PLACES, runs, 4).sum(axis=1)
    longest = held.max(axis=(1, 3))
    for trial in range(TRIALS):
        full = held[:, :, trial % runs].reshape(strips, LANES).argmax(axis=1) // 4
        other = (full + rng.integers(1, PLACES, strips)) % PLACES
        one, two = (rng.integers(0, share, strips) * PLACES + g for g in (full, other))
        gained = in_runs[strip, two] - in_runs[strip, one]
        held[strip, full] += gained
        held[strip, other] -= gained
        now = held.max(axis=(1, 3))
        better = _stored(now) <= _stored(longest)
        worse = ~better
        held[strip[worse], full[worse]] -= gained[worse]
        held[strip[worse], other[worse]] += gained[worse]
        longest[better] = now[better]
        kept, one, two = strip[better], one[better], two[better]
        for array in (places, in_runs):
            array[kept, one], array[kept, two] = array[kept, two], array[kept, one]


def _stored(longest: Array) -> Array:
    """Returns what streams of these lengths take in all, in whole pairs, plus their lengths: shorter ones win ties."""
    return ((longest + 2 + PAIR - 1) // PAIR * PAIR + longest).sum(axis=1)  # type: ignore[no-any-return]
