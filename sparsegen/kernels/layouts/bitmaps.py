"""Tiles of A as fragments with holes: a bit for each element, and the nonzeros of each lane behind one another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.device_memory import WARP

TILE_M = 128  # rows of a tile, 16 for each of eight warps
TILE_K = 64  # columns: 32 elements for each lane
WARPS = TILE_M // 16
HEAD_WORDS = (
    WARPS + WARPS * WARP
)  # of a tile: where each warp's nonzeros begin, and a word of bits for each lane


@dataclass(frozen=True, slots=True)
class Bitmaps:
    """What stands for A, tile after tile along k, and then along its rows.

    Attributes:
        heads: uint32, tiles × `HEAD_WORDS`. The first words say at which byte of the tile's elements each warp's begin.
        offsets: int32, where each tile's elements begin, in slots; one more than there are tiles.
        source: int32, for each element of the slots the nonzero's number in CSR order, or -1 for a zero.
        row_tiles: tiles along A's rows.
        steps: tiles along k.
        slot_bytes: of one slot.
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
    m, k = matrix.shape
    row_tiles, steps = -(-m // TILE_M), -(-k // TILE_K)
    lanes = row_tiles * steps * WARPS * WARP
    lane, element = _places(matrix, steps)
    order = np.argsort(lane * WARP + element, kind="stable").astype(np.int32)
    lane, element = lane[order], element[order]
    bit = element // granule
    is_first = np.ones(order.size, dtype=bool)  # of its bit
    is_first[1:] = (lane[1:] != lane[:-1]) | (bit[1:] != bit[:-1])
    counts = np.bincount(lane[is_first], minlength=lanes)
    slots = counts.reshape(-1, WARP).max(axis=1).reshape(-1, WARPS)  # of each warp of a tile
    offsets = np.zeros(row_tiles * steps + 1, dtype=np.int64)
    np.cumsum(slots.sum(axis=1), out=offsets[1:])
    begins = np.cumsum(slots, axis=1) - slots

    turn = np.cumsum(is_first) - 1 - (np.cumsum(counts) - counts)[lane]
    slot = (offsets[:-1, None] + begins).ravel()[lane // WARP] + turn
    source = np.full(int(offsets[-1]) * WARP * granule, -1, dtype=np.int32)
    source[(slot * WARP + lane % WARP) * granule + element % granule] = order

    slot_bytes = WARP * granule * 2
    heads = np.empty((row_tiles * steps, HEAD_WORDS), dtype=np.uint32)
    heads[:, :WARPS] = begins * slot_bytes
    bits = np.bincount(
        lane[is_first], weights=np.exp2(bit[is_first]), minlength=lanes
    )  # exact: 32 bits, each once
    heads[:, WARPS:] = bits.astype(np.uint32).reshape(-1, WARPS * WARP)
    return Bitmaps(heads.ravel(), offsets.astype(np.int32), source, row_tiles, steps, slot_bytes)


def _places(matrix: CsrMatrix, steps: int) -> tuple[Array, Array]:
    """Of each nonzero the lane among those of all tiles, and which of its 32 elements."""
    row = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.row_offsets))
    column = matrix.column_indices.astype(np.int64)
    tile = row // TILE_M * steps + column // TILE_K
    warp = row % TILE_M // 16
    lane = row % 8 * 4 + column % 8 // 2
    word = column % 16 // 8 * 2 + row % 16 // 8
    element = column % TILE_K // 16 * 8 + word * 2 + column % 2
    return (tile * WARPS + warp) * WARP + lane, element
