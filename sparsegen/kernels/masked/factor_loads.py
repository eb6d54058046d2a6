"""How tiles of a masked product's factors come to shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparsegen.kernels.config import Value
from sparsegen.kernels.layouts.loads import LOAD_BYTES, widest_vector
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.kernels.masked.side import Side
from sparsegen.operators import DType

LEAST_COPIED = 8  # bytes; 16-bit rows that only narrower vectors divide are copied by whole chunks, and shifted


class FactorLoads(NamedTuple):
    """How a factor's tiles are loaded, in rows as they lie in memory.

    Attributes:
        rows, row: of a tile in shared memory: their number, and the elements of one.
        vector: elements that a copy moves.
        runs: parts of a row, of which each is one piece in global memory too.
        shifts: true if copies move aligned chunks of 16 bytes, whose elements warps then shift to their places. Each
            run has one chunk more.
    """

    rows: int
    row: int
    vector: int
    runs: int
    shifts: bool

    @classmethod
    def of(cls, side: Side, config: MaskedTilesConfig, dtype: DType) -> tuple[FactorLoads, FactorLoads]:
        """The loads of A and of B."""
        c, size = config, dtype.itemsize
        step_blocks = 1 if side.samples else max(1, c.step // side.inner_block)

        def tile(extent: int, lines: int, by_inner: bool, blocks: int) -> FactorLoads:
            vector = widest_vector(side.inner if by_inner else lines, dtype)
            shifts = size == 2 and vector * size < LEAST_COPIED
            rows, row, runs = (extent, c.step, step_blocks) if by_inner else (c.step, extent, blocks)
            return cls(rows, row, LOAD_BYTES // size if shifts else vector, runs, shifts)

        return (
            tile(c.tile_m, side.rows, side.a_by_inner, max(1, c.tile_m // side.row_block)),
            tile(c.tile_n, side.columns, side.b_by_inner, 1),
        )

    @property
    def gap(self) -> int:
        """Chunks behind each row in shared memory: an odd number, so that a fragment's rows are in different banks."""
        return self.runs | 1 if self.shifts else 1

    @property
    def copies(self) -> int:
        """The copies of a step."""
        return self.rows * (self.row // self.vector + self.shifts * self.runs)

    def shared_bytes(self, size: int) -> int:
        """The bytes of a tile, of elements of ``size`` bytes, in shared memory."""
        return self.rows * (self.row * size + self.gap * LOAD_BYTES)

    def constants(self, factor: str) -> Mapping[str, Value]:
        """What the template is told of factor a or b."""
        return {f"vector_{factor}": self.vector, f"shifts_{factor}": self.shifts, f"gap_{factor}": self.gap}
