"""The code-stream format: a bit for each weight, and every lane's codes as a stream of words in the lane's own bank.

Tiles, groups, steps and blocks are those of `sparsegen.kernels.layouts.lane_stream`; a warp has four tiles of a step,
side by side.

- *masks*: a bit for each *unit* of a lane's tile, in the order of its stream. A unit is one weight, bit 8 s + 2 r + e;
  or a pair of 4-bit ones in a byte, those of registers r = 2 p and 2 p + 1 (rows g and g + 8), bit 4 s + 2 e + p, which
  is set if one of both is there. A pair takes one step of the expansion where two weights take two, for a code of zero
  where the other weight is not there.
- *values*: the units of a lane that are there, tile by tile, are that lane's stream, four or eight in a 32-bit word.
  A warp's streams are interleaved word by word, so that a row of 128 bytes has a word for each lane; 8 rows are a
  chunk, as it is copied to the ring. *starts* say with which chunk each stream begins.
- *orders*: a word for each step and warp: how many chunks the step needs beyond those before.

A lane that is a whole ring behind leaves units out: nothing is stored there. Rows and columns are filled up to whole
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
    TILE,
    Partition,
    arranged_groups,
    bit_counts,
    groups_at_once,
)
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.system.integers import ceil_div, round_up

TILES = 4  # tiles of a warp in a step
ZERO_INT4 = 8  # the code of zero
WORD_BITS, ROWS_OF_CHUNK = 32, 8
AHEAD = 16  # units behind a lane's last one that the words it reads may hold


# The weights of an octet, numbered 2 r + e, pair by pair.
_PAIRED = np.array([0, 2, 4, 6, 1, 3, 5, 7])


@dataclass(frozen=True, slots=True)
class Unit:
    """One code, or two that share a byte: a bit of a mask says whether it is stored.

    Attributes:
        bits: of the unit; 4 or 8.
        codes: in it; 1, or 2 of 4 bits.
    """

    bits: int
    codes: int = 1

    @property
    def of_word(self) -> int:
        return WORD_BITS // self.bits

    @property
    def of_chunk(self) -> int:
        """Units of a lane in a chunk."""
        return ROWS_OF_CHUNK * self.of_word

    @property
    def of_tile(self) -> int:
        """Units of a lane in a tile."""
        return TILE // self.codes

    def mask_bytes(self) -> int:
        """Bytes of a lane's masks of a step."""
        return TILES * self.of_tile // 8


@dataclass(frozen=True, slots=True, eq=False)
class CodeStreams:
    """A packed pattern.

    Attributes:
        masks: uint32 [steps of all groups, warps, lanes, 4]; of pairs uint16.
        orders: uint32 [steps of all groups, warps filled up to a multiple of 4].
        starts: int32, of each stream (block by block, warp by warp) where it begins, and the end of the last (chunks).
        source: int32, of each stored code the nonzero's number in CSR order, or -1.
    """

    masks: Array
    orders: Array
    starts: Array
    source: Array


def pack(
    matrix: CsrMatrix,
    partition: Partition,
    *,
    unit: Unit,
    ring_chunks: int,
    depth: int,
    rows: Array | None = None,
) -> CodeStreams:
    """Lay out a pattern.

    Args:
        unit: what a bit of a mask stands for.
        ring_chunks: chunks that a ring holds, with those on their way.
        depth: chunks on their way.
        rows: see `sparsegen.kernels.layouts.lane_stream_rows.balanced_rows`; None for the matrix's own order.

    Raises:
        MatrixError: the codes pass the 32-bit range of their numbers.
    """
    p = partition
    width = np.uint16 if unit.codes == 2 else np.uint32
    present = np.zeros((p.total, p.warps, TILES, LANES), dtype=width)
    with ThreadPoolExecutor(THREADS) as pool:
        sorting = functools.partial(_sort_units, matrix, p, rows, unit, present)
        order = [np.empty((0, unit.codes), dtype=np.int32)]
        order += pool.map(sorting, range(0, p.groups, groups_at_once(p)))
    counts = bit_counts(present)
    positions, orders, chunks = _positions(counts, p, unit.of_chunk, ring_chunks - depth)
    starts = starts_of(chunks, unit, matrix.nnz)
    source = np.full((int(starts[-1]) * unit.of_chunk * LANES, unit.codes), -1, dtype=np.int32)
    begins, units = p.begins(), np.r_[0, np.cumsum(counts.sum(axis=(1, 2, 3), dtype=np.int64))]
    ordered, of_word = np.concatenate(order), unit.of_word
    lanes = np.arange(LANES) * of_word

    def fill(block: int) -> None:
        steps = slice(begins[block], begins[block + 1])
        mine = ordered[units[steps.start] : units[steps.stop]]
        count = counts[steps].reshape(-1).astype(np.int64)
        first = positions[steps].reshape(-1) - (np.cumsum(count) - count)
        place = np.repeat(first, count) + np.arange(len(mine))
        streams = starts[block * p.warps : (block + 1) * p.warps].astype(np.int64) * (unit.of_chunk * LANES)
        base = np.broadcast_to(streams[:, None, None] + lanes, counts[steps].shape).reshape(-1)
        source[np.repeat(base, count) + place // of_word * (of_word * LANES) + place % of_word] = mine

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(fill, range(p.used_blocks)):
            pass
    masks = np.ascontiguousarray(present.transpose(0, 1, 3, 2))
    return CodeStreams(masks, orders, starts, source.reshape(-1))


def _sort_units(
    matrix: CsrMatrix, partition: Partition, rows: Array | None, unit: Unit, bits: Array, first: int
) -> Array:
    """Set the bits of some groups from the ``first`` one on.

    Returns:
        int32 [units, codes of a unit]: the numbers of their nonzeros in CSR order, or -1, in the order of streams.
    """
    weights = arranged_groups(matrix, partition, rows, first)
    if unit.codes == 2:
        weights = weights.reshape(-1, _PAIRED.size)[:, _PAIRED]
    units = weights.reshape(-1, unit.codes)
    present = (units >= 0).any(axis=1)
    words = np.packbits(present, bitorder="little").view(bits.dtype)
    target = bits[first * partition.steps :][: words.size // bits[0].size]
    target[...] = words.reshape(target.shape)
    return units[present]


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


def starts_of(chunks: Array, unit: Unit, nnz: int) -> Array:
    """Returns where each stream begins and the last one ends, in chunks (int32).

    Args:
        chunks: number of chunks in each stream.
        unit: what is stored.
        nnz: nonzeros of the matrix, for the message.

    Raises:
        MatrixError: the codes pass the 32-bit range of their numbers.
    """
    starts = np.r_[0, np.cumsum(chunks, dtype=np.int64)]
    stored = int(starts[-1]) * unit.of_chunk * unit.codes * LANES
    if stored > MAX_INDEX:
        raise MatrixError(
            f"{nnz} nonzeros take {stored} places, more than 32-bit numbers reach ({MAX_INDEX}); split the matrix by "
            "rows"
        )
    narrow: Array = starts.astype(np.int32)
    return narrow


def stored_codes(codes: Array, source: Array, unit: Unit) -> Array:
    """The codes as the kernel reads them, uint8: one a byte, or two of 4 bits with the first in its lower half.

    Args:
        codes: of each nonzero, uint8 in CSR order; where there is no nonzero stands 0, and in pairs the code of zero.
    """
    found: Array = np.append(codes, np.uint8(0 if unit.codes == 1 else ZERO_INT4))[source]
    return found if unit.bits // unit.codes == 8 else found[0::2] | found[1::2] << 4
