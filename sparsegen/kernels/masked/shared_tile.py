"""Tiles of a masked product's factors and result in shared memory, and the copies that bring them there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparsegen.kernels.config import Value
from sparsegen.kernels.layouts.loads import LEAST_ASYNC, LOAD_BYTES, widest_vector
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.kernels.masked.side import Side
from sparsegen.operators import DType
from sparsegen.system.integers import ceil_div


class SharedTile(NamedTuple):
    """A tile in rows as they lie in memory.

    Attributes:
        rows, row: their number, and the elements of one.
        runs: pieces of a row that lie in one piece in global memory too.
        shifts: true if accesses of global memory move aligned chunks of 16 bytes, and elements are shifted in shared
            memory. Each run has one chunk more there.
        vector: elements that an access moves.
    """

    rows: int
    row: int
    runs: int
    shifts: bool
    vector: int

    @classmethod
    def of_factors(cls, side: Side, config: MaskedTilesConfig, dtype: DType) -> tuple[SharedTile, SharedTile]:
        """The tiles of A and of B, of a step."""
        c, chunk = config, LOAD_BYTES // dtype.itemsize
        step_blocks = 1 if side.samples else max(1, c.step // side.inner_block)

        def tile(extent: int, lines: int, by_inner: bool, blocks: int) -> SharedTile:
            length = side.inner if by_inner else lines
            vector = widest_vector(length, dtype)
            shifts = vector * dtype.itemsize < LEAST_ASYNC and length >= chunk
            rows, row, runs = (extent, c.step, step_blocks) if by_inner else (c.step, extent, blocks)
            return cls(rows, row, runs, shifts, chunk if shifts else vector)

        return (
            tile(c.tile_m, side.rows, side.a_by_inner, max(1, c.tile_m // side.row_block)),
            tile(c.tile_n, side.columns, side.b_by_inner, 1),
        )

    @classmethod
    def of_result(cls, side: Side, config: MaskedTilesConfig, dtype: DType) -> SharedTile:
        """The tile of results that are stored by lines."""
        c, chunk = config, LOAD_BYTES // dtype.itemsize
        if side.by_columns:
            return cls(c.tile_n, c.tile_m, max(1, c.tile_m // side.row_block), True, chunk)
        return cls(c.tile_m, c.tile_n, 1, True, chunk)

    @property
    def gap(self) -> int:
        """Chunks behind each row: an odd number, so that the rows of a fragment are in different banks."""
        return self.runs | 1 if self.shifts else 1

    def nbytes(self, size: int) -> int:
        """The bytes that it takes, of elements of ``size`` bytes."""
        return self.rows * (self.row * size + self.gap * LOAD_BYTES)

    def copies(self, threads: int) -> int:
        """Copies of a thread, but for those of the further chunks."""
        return ceil_div(self.rows * (self.row // self.vector), threads)

    def constants(self, factor: str) -> Mapping[str, Value]:
        """Constants of the template about factor a or b."""
        return {f"vector_{factor}": self.vector, f"shifts_{factor}": self.shifts, f"gap_{factor}": self.gap}
