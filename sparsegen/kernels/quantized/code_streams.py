"""The code-stream format: a bit for each weight, and every lane's codes as a stream of words in the lane's own bank.

Tiles, groups, steps and blocks are those of `sparsegen.kernels.layouts.lane_stream`; a warp has four tiles of a step,
side by side.

- *masks*: one 32-bit word for each lane and tile, bit 8 s + 2 r + e, which is the order of its codes.
- *values*: the codes of a lane, in the order of tiles, s, r, e, are that lane's stream, four or eight in a word of 32
  bits. A warp's streams are interleaved word by word, so that a row of 128 bytes has a word for each lane; 8 rows are a
  chunk, as it is copied to the ring. *starts* say with which chunk each stream begins.
- *orders*: a word for each step and warp: how many chunks the step needs beyond those before.

A lane that is a whole ring behind leaves codes out: nothing is stored there. Rows and columns are filled up to whole
tiles with zeros, which take a bit each and no code.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.kernels.layouts.lane_stream import (
    LANES,
    ORDERS_AT_ONCE,
    THREADS,
    Partition,
    bit_counts,
    groups_at_once,
    sort_groups,
)
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.system.integers import ceil_div, round_up

TILES = 4  # tiles of a warp in a step
WORD_BITS, ROWS_OF_CHUNK = 32, 8
AHEAD = 16  # codes behind a lane's last one that the words it reads may hold


@dataclass(frozen=True, slots=True, eq=False)
class CodeStreams:
    """A packed pattern.

    Attributes:
        masks: uint32 [steps of all groups, warps, lanes, 4].
        orders: uint32 [steps of all groups, warps filled up to a multiple of 4].
        starts: int32, of each stream (block by block, warp by warp) where it begins, and the end of the last (chunks).
        source: int32, of each stored code the nonzero's number in CSR order, or -1.
    """

    masks: Array
    orders: Array
    starts: Array
    source: Array


def chunk_codes(bits: int) -> int:
    """Codes of a lane in a chunk."""
    return ROWS_OF_CHUNK * WORD_BITS // bits


def pack(
    matrix: CsrMatrix,
    partition: Partition,
    *,
    bits: int,
    ring_chunks: int,
    depth: int,
    rows: Array | None = None,
) -> CodeStreams:
    """Lay out a pattern.

    Args:
        bits: bits of a code, 4 or 8.
        ring_chunks: chunks that a ring holds, with those on their way.
        depth: chunks on their way.
        rows: see `sparsegen.kernels.layouts.lane_stream_rows.balanced_rows`; None for the matrix's own order.

    Raises:
        MatrixError: the codes pass the 32-bit range of their numbers.
    """
    p = partition
    present, order = (
        np.zeros((p.total, p.warps, TILES, LANES), dtype=np.uint32),
        [np.empty(0, dtype=np.int32)],
    )
    with ThreadPoolExecutor(THREADS) as pool:
        sorting = functools.partial(sort_groups, matrix, p, rows, present)
        order += pool.map(sorting, range(0, p.groups, groups_at_once(p)))
    counts = bit_counts(present)
    of_chunk = chunk_codes(bits)
    positions, orders, chunks = _positions(counts, p, of_chunk, ring_chunks - depth)
    starts = starts_of(chunks, of_chunk, matrix.nnz)
    source = np.full(int(starts[-1]) * of_chunk * LANES, -1, dtype=np.int32)
    begins, nonzeros = p.begins(), np.r_[0, np.cumsum(counts.sum(axis=(1, 2, 3), dtype=np.int64))]
    ordered, of_word = np.concatenate(order), WORD_BITS // bits
    lanes = np.arange(LANES) * of_word

    def fill(block: int) -> None:
        steps = slice(begins[block], begins[block + 1])
        mine = ordered[nonzeros[steps.start] : nonzeros[steps.stop]]
        count = counts[steps].reshape(-1).astype(np.int64)
        first = positions[steps].reshape(-1) - (np.cumsum(count) - count)
        place = np.repeat(first, count) + np.arange(mine.size)
        streams = starts[block * p.warps : (block + 1) * p.warps].astype(np.int64) * (of_chunk * LANES)
        base = np.broadcast_to(streams[:, None, None] + lanes, counts[steps].shape).reshape(-1)
        source[np.repeat(base, count) + place // of_word * (of_word * LANES) + place % of_word] = mine

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(fill, range(p.used_blocks)):
            pass
    masks = np.ascontiguousarray(present.transpose(0, 1, 3, 2))
    return CodeStreams(masks, orders, starts, source)


def _positions(
    counts: Array, partition: Partition, of_chunk: int, kept_chunks: int
) -> tuple[Array, Array, Array]:
    """Returns each lane's position in its stream before each tile, and the orders that follow for the rings.

    Args:
        kept_chunks: chunks of a ring that are not on their way.

    Returns:
        Positions, int32 in the shape of ``counts``; the orders; and the chunks of each stream (int64).
    """
    p = partition
    begins = p.begins()
    runs = np.diff(begins)
    at = np.zeros((p.used_blocks, p.warps, LANES), dtype=np.int32)
    held = np.zeros(at.shape[:2], dtype=np.int32)  # chunks
    positions = np.empty(counts.shape, dtype=np.int32)
    orders = np.zeros((p.total, round_up(p.warps, ORDERS_AT_ONCE)), dtype=np.uint32)
    for step in range(int(runs.max(initial=0))):
        going = np.flatnonzero(step < runs)
        which = begins[going] + step
        tiles = counts[which].astype(np.int32)
        now, taken = at[going], tiles.sum(axis=2, dtype=np.int32)
        needed = np.maximum(held[going], ceil_div((now + taken).max(axis=-1) + AHEAD, of_chunk))
        orders[which, : p.warps] = needed - held[going]
        # Lanes are brought up only where chunks come, as the kernel does it.
        comes = (needed > held[going])[..., None]
        now = np.where(comes, np.maximum(now, (needed[..., None] - kept_chunks) * of_chunk), now)
        positions[which] = now[:, :, None] + np.cumsum(tiles, axis=2, dtype=np.int32) - tiles
        at[going], held[going] = now + taken, needed
    return positions, orders, held.astype(np.int64).ravel()


def starts_of(chunks: Array, of_chunk: int, nnz: int) -> Array:
    """Returns where each stream begins and the last one ends, in chunks (int32).

    Args:
        chunks: number of chunks in each stream.
        of_chunk: codes of a lane in a chunk.
        nnz: nonzeros of the matrix, for the message.

    Raises:
        MatrixError: the codes pass the 32-bit range of their numbers.
    """
    starts = np.r_[0, np.cumsum(chunks, dtype=np.int64)]
    stored = int(starts[-1]) * of_chunk * LANES
    if stored > MAX_INDEX:
        raise MatrixError(
            f"{nnz} nonzeros take {stored} places, more than 32-bit numbers reach ({MAX_INDEX}); split the matrix by "
            "rows"
        )
    narrow: Array = starts.astype(np.int32)
    return narrow


def stored_codes(codes: Array, source: Array, bits: int) -> Array:
    """The codes as the kernel reads them, uint8: one a byte, or two with the first in its lower half.

    Args:
        codes: of each nonzero, uint8 in CSR order; where there is no nonzero stands 0, which no weight takes.
    """
    found: Array = np.append(codes, np.uint8(0))[source]
    return found if bits == 8 else found[0::2] | found[1::2] << 4
