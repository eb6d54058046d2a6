"""The common part of families of masked products in small blocks, whose tiles TMA and warps load (sm_90a)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.copied_ring import CHUNK_BYTES, PIECE, THREADS, TILE_M, ring_constraints
from sparsegen.kernels.layouts.limits import shared_memory_fits
from sparsegen.kernels.masked.masked_tiles_time import stored_cycles
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import DsdProblem, FactorType, MaskedProblem
from sparsegen.system.integers import ceil_div

SIDES = (16, 32)  # of blocks
STEP = 64  # elements of the contraction in a stage
MOST_STAGES = 6
STAGE_BYTES = 200 << 10  # of all stages, at most
SHARED_BYTES = 1024  # beside the stages, at most
# Estimates: microseconds of a tile before its first products and behind its last ones; bytes that a multiprocessor
# takes in from the L2 in a cycle; cycles in which a warp loads 16 columns of B, for 16 elements of the contraction.
TILE_US = 1.7
LOADED_PER_CYCLE = 34.0
FRAGMENT_CYCLES = 4.0
# The part of a widest tile's time that steps of narrower ones take as well: 20 times of drawn problems on an H200.
WIDEST, ANY_WIDTH = 256, 0.7
OVER_FLOORS = 2.5, 1.4  # times of an H200 over these floors: blocks of 16 rows, and of more


@dataclass(frozen=True)
class SmallBlocksConfig(Config):
    """One point of the tuning space of the `SmallBlocks` families."""

    tile_n: int = tunable(256, (64, 128, 256), "columns of the result per thread block")


P = TypeVar("P", bound=MaskedProblem)
C = TypeVar("C", bound=SmallBlocksConfig)


class SmallBlocks(Family[P, C]):
    """A thread block computes 128 rows, 16 of them by each warp, which skips the blocks that are dead there.

    One warp loads the rows of B for blocks that are live in some row of the tile by TMA, and another one copies A's
    live blocks. Tiles take their rows in the mask's order, rows with most live blocks first. The kernel reads no dead
    block.
    """

    size_names = ("m", "k", "n")
    packed_names = ()
    template = "masked/tma_blocks.cu.j2"
    source = (
        "Lo: Efficient Sparse Training with Structured Dropout (block-sparse products that skip dropped blocks); warps "
        "that load beside warps that multiply: NVIDIA, Hopper tuning guide"
    )

    def scope(self, problem: P) -> Iterator[Constraint]:
        side, block, size = Side.of(problem), problem.block, problem.dtype.itemsize
        yield batch_in_grid(problem)
        yield Constraint(
            size == 2 and problem.factor_type is FactorType.SAME, "warps multiply 16-bit elements"
        )
        yield Constraint(
            block.rows in SIDES and block.columns in SIDES, f"blocks ({block}) have sides of 16 or 32"
        )
        rows = (side.inner if side.a_by_inner else side.rows, side.inner if side.b_by_inner else side.columns)
        yield Constraint(
            all(row * size % CHUNK_BYTES == 0 for row in rows),
            f"rows of both matrices ({rows[0]} and {rows[1]} elements) are whole chunks of 16 bytes",
        )

    def constraints(self, problem: P, config: C, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield next(ring_constraints(device))
        yield shared_memory_fits("stages", self._shared_bytes(config), device)

    def is_worth_trying(self, problem: P, config: C, device: Device) -> bool:
        """True unless a tile is twice as wide as the result or wider: such tiles are mostly padding."""
        return config.tile_n < 2 * max(PIECE, Side.of(problem).columns)

    def constants(self, problem: P, config: C) -> Mapping[str, Value]:
        side = Side.of(problem)
        return {
            "dtype": problem.dtype.value,
            "entry": self.entry,
            **side.constants,
            "transposes": side.transposes,
            "by_columns": side.by_columns,
            "epilogue": problem.epilogue.value if isinstance(problem, DsdProblem) else "none",
            "even_columns": side.columns % 2 == 0,
            "stages": self._stages(config),
            **batch_constants(problem),
        }

    def tensor_map(self, problem: P, config: C, name: str) -> TensorMap:
        side, size = Side.of(problem), problem.dtype.itemsize
        sizes, box = (side.columns, side.inner), (PIECE, side.inner_block)
        if side.b_by_inner:
            sizes, box = (side.inner, side.columns), (side.inner_block, config.tile_n)
        is_batch, row_bytes = problem.batch > 1, sizes[0] * size
        return TensorMap(
            array=name,
            dtype=problem.dtype,
            sizes=(*sizes, problem.batch) if is_batch else sizes,
            strides=(row_bytes, row_bytes * sizes[1]) if is_batch else (row_bytes,),
            box=(*box, 1) if is_batch else box,
            swizzle=Swizzle(box[0] * size),
        )

    def pack(self, problem: P, config: C, matrix: CsrMatrix) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz)

    def launch(self, problem: P, config: C, sizes: Mapping[str, int], device: Device) -> Launch:
        return Launch(
            grid=(self._tiles(problem, config), 1, problem.batch),
            block=(THREADS, 1, 1),
            shared_memory_bytes=self._shared_bytes(config),
            starts_early=True,
        )

    def heuristic(self, problem: P, features: Features, device: Device) -> C:
        """Returns the tiles with the least expected time; of those that are expected to take as long, the widest."""
        some = [self.config_type(tile_n=tile_n) for tile_n in (256, 128, 64)]
        return self.fastest(problem, features, some, device)

    def analytic_us(self, problem: P, features: Features, config: C, device: Device) -> float:
        """Waves of tiles, each as long as its loads or as its warps' fragments; the longest one makes the last wave."""
        c, rates, side, share = config, device.expected_rates, Side.of(problem), problem.density.share
        strips = max(1, TILE_M // side.row_block)
        union = any_live(share, strips)  # of the blocks along the contraction are loaded
        size = problem.dtype.itemsize
        # A warp's own share of the contraction, that of the longest of a tile's rows.
        longest = min(1.0, share + 1.5 * math.sqrt(share * (1 - share) * side.inner_block / side.inner))

        def floor(tile_n: int) -> float:
            """Cycles of a tile."""
            loaded = side.inner * (union * tile_n + share * TILE_M) * size
            fragments = (
                longest * (TILE_M / PIECE) * 4 * tile_n / PIECE * side.inner / 16 * 8 / (side.row_block / 16)
            )
            return max(loaded / LOADED_PER_CYCLE, fragments * FRAGMENT_CYCLES / 2 + loaded / 128)

        cycles = ANY_WIDTH * floor(WIDEST) + (1 - ANY_WIDTH) * floor(c.tile_n)
        stored = stored_cycles(side, TILE_M, c.tile_n)
        rounds = ceil_div(self._tiles(problem, c) * problem.batch, device.multiprocessors)
        moved = problem.cost(0).bytes / rates.copy_bytes_per_us
        return rates.launch_us + max(
            moved,
            rounds * (TILE_US + (OVER_FLOORS[side.row_block > SIDES[0]] * cycles + stored) / rates.clock_mhz),
        )

    def _tiles(self, problem: P, config: C) -> int:
        """The number of tiles of a batch element."""
        side = Side.of(problem)
        return ceil_div(side.mask_rows, max(1, TILE_M // side.row_block)) * ceil_div(
            side.columns, config.tile_n
        )

    @staticmethod
    def _stages(config: SmallBlocksConfig) -> int:
        return min(MOST_STAGES, STAGE_BYTES // ((TILE_M + config.tile_n) * STEP * 2))

    @classmethod
    def _shared_bytes(cls, config: SmallBlocksConfig) -> int:
        return cls._stages(config) * (TILE_M + config.tile_n) * STEP * 2 + SHARED_BYTES
