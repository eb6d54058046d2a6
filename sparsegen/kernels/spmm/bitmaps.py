"""Tiles of A as fragments with holes: a bit for each element, and the nonzeros of each lane behind one another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsegen.kernels.spmm.strips import Strip, by_strips
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

TILE_M = 128  # rows of a tile, 16 for each of eight warps
TILE_K = 64  # columns: 32 elements for each lane
WARPS = TILE_M // 16
ELEMENTS = TILE_M * TILE_K // (WARPS * WARP)  # elements of a lane
PLACES = 1 << 21  # elements of a strip's tiles, about, zeros included
# Words of a tile: the start of each warp's nonzeros, and a word of bits for each lane.
HEAD_WORDS = WARPS + WARPS * WARP


class Bitmaps(NamedTuple):
    """The packed form of A: tiles in order along k, then along its rows.

    Attributes:
        heads: uint32, tiles × `HEAD_WORDS`. The first words say at which byte of the tile's elements each warp's begin.
        offsets: int32, where each tile's elements begin, in slots; one more than there are tiles.
        source: int32, for each element of the slots the nonzero's number in CSR order, or -1 for a zero.
        row_tiles: tiles along A's rows.
        steps: tiles along k.
        slot_bytes: bytes of one slot.
    """

    heads: Array
    offsets: Array
    source: Array
    row_tiles: int
    steps: int
    slot_bytes: int

    @property
    def most_bytes(self) -> int:
        """The bytes of the largest tile's elements."""
        return int(np.diff(self.offsets).max(initial=0)) * self.slot_bytes


def bitmaps(matrix: CsrMatrix, granule: int) -> Bitmaps:
    """Lay out the pattern of a matrix of at least one row and column, elements of 16 bits.

    An element e of a lane is one of its fragment of places e // 8 * 16 and on along k: of word e // 2 % 4 the lower
    half where e is even, else the upper one (PTX, mma.m16n8k16). Bit i stands for ``granule`` elements (1 or 2) from
    element i · granule on, and is set where any is a nonzero. Slot i of a warp holds what belongs to each lane's i-th
    bit that is set.
    """
    parts = by_strips(matrix, TILE_M, lambda strip: _strip_bitmaps(strip, granule), PLACES)
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    offsets = np.zeros(lengths.size + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Bitmaps(
        np.concatenate([part.heads for part in parts]),
        offsets.astype(np.int32),
        np.concatenate([part.source for part in parts]),
        sum(part.row_tiles for part in parts),
        parts[0].steps,
        parts[0].slot_bytes,
    )


def _strip_bitmaps(matrix: Strip, granule: int) -> Bitmaps:
    """The same of a strip, with the whole matrix's numbers of nonzeros."""
    m, k = matrix.shape
    row_tiles, steps = ceil_div(m, TILE_M), ceil_div(k, TILE_K)
    lanes = row_tiles * steps * WARPS * WARP
    bits_of_lane = ELEMENTS // granule
    # A number for every element, zeros included: writing numbers to their places sorts them.
    number = np.full(lanes * ELEMENTS, -1, dtype=np.int32)
    number[_places(matrix, steps)] = np.arange(matrix.begins, matrix.begins + matrix.column_indices.size)
    is_set = number >= 0
    if granule == 2:
        is_set = is_set[::2] | is_set[1::2]
    bits = np.packbits(is_set, bitorder="little").view(f"<u{bits_of_lane // 8}").astype(np.uint32)
    counts = _trues(is_set, bits_of_lane)
    slots = counts.reshape(-1, WARP).max(axis=1).reshape(-1, WARPS)  # slots of each warp of a tile
    offsets = np.zeros(row_tiles * steps + 1, dtype=np.int64)
    np.cumsum(slots.sum(axis=1), out=offsets[1:])
    begins = np.cumsum(slots, axis=1) - slots

    # Place of each lane's first bit, less what all bits of the lanes before it would take.
    first = np.repeat((offsets[:-1, None] + begins).ravel(), WARP) - (np.cumsum(counts) - counts)
    first = first * WARP + np.tile(np.arange(WARP), lanes // WARP)
    at = np.repeat(first, counts)
    at += np.arange(0, at.size * WARP, WARP)
    source = np.full(int(offsets[-1]) * WARP * granule, -1, dtype=np.int32)
    of_bit = np.dtype(f"i{4 * granule}")
    source.view(of_bit)[at] = number.view(of_bit)[np.flatnonzero(is_set)]

    slot_bytes = WARP * granule * 2
    heads = np.empty((row_tiles * steps, HEAD_WORDS), dtype=np.uint32)
    heads[:, :WARPS] = begins * slot_bytes
    heads[:, WARPS:] = bits.reshape(-1, WARPS * WARP)
    return Bitmaps(heads.ravel(), offsets.astype(np.int32), source, row_tiles, steps, slot_bytes)


def _trues(bools: Array, length: int) -> Array:
    """int64: how many of each row of 16 or 32 bools are true, whose bytes are added up eight at a time."""
    words = bools.view(np.uint64).reshape(-1, length // 8)
    of_bytes = sum(words[:, i] for i in range(1, words.shape[1])) + words[:, 0]
    found: Array = (of_bytes * np.uint64(0x0101010101010101) >> np.uint64(56)).astype(np.int64)
    return found


def _places(matrix: Strip, steps: int) -> Array:
    """int64: of each nonzero the lane among those of all tiles, and which of its elements: lane · `ELEMENTS` + element.

    A row adds its part, and a column its own, so that nothing is divided for each nonzero.
    """
    row, column = (np.arange(size, dtype=np.int64) for size in matrix.shape)
    warp = row // TILE_M * steps * WARPS + row % TILE_M // 16
    of_row = (warp * WARP + row % 8 * 4) * ELEMENTS + row % 16 // 8 * 2
    lane = column // TILE_K * WARPS * WARP + column % 8 // 2
    of_column = lane * ELEMENTS + column % TILE_K // 16 * 8 + column % 16 // 8 * 4 + column % 2
    places: Array = matrix.each(of_row) + of_column[matrix.column_indices]
    return places
