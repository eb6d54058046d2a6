"""``sdd`` in small blocks: warps' tensor cores compute live blocks alone, of large tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.copied_ring import CHUNK_BYTES, PIECE, ROW_BYTES, THREADS, ring_constraints
from sparsegen.kernels.layouts.limits import shared_memory_fits
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import FactorType, SddProblem
from sparsegen.system.integers import ceil_div

UNIT = 16  # rows and columns of the sums that two instructions add to
SIDES = (16, 32)  # of blocks
WARPS, UNITS = 8, 16  # warps that multiply, and units whose sums each of them holds
STEP = ROW_BYTES // 2  # elements of the contraction in a stage
MOST_STAGES = 6
STAGE_BYTES = 208 << 10  # of all stages, at most
BARRIER_BYTES = 16 * MOST_STAGES
# Fitted on an H200 to eleven times of two problems: microseconds until a tile's first products; bytes that a
# multiprocessor asks the L2 for in a cycle; and cycles of shared memory in which a warp loads a fragment.
START_US = 3.0
LOADED_PER_CYCLE = 27.0
FRAGMENT_CYCLES = 5.0


@dataclass(frozen=True)
class TmaBlockSddConfig(Config):
    """One point of the tuning space of `tma_block_sdd`."""

    tile_m: int = tunable(256, (64, 128, 256), "rows of the result per thread block")
    tile_n: int = tunable(512, (128, 256, 512), "columns of the result per thread block")
    cluster: int = tunable(
        1, (1, 2), "thread blocks with the same columns that share their loads (multicast)"
    )


class TmaBlockSdd(Family[SddProblem, TmaBlockSddConfig]):
    """A thread block loads a tile's rows and columns by TMA, and its warps deal the live blocks among themselves.

    Sums of live blocks alone are in registers, so that tiles are larger the fewer blocks are live, and bytes that are
    loaded and products go down together. Where a tile has more live blocks than its warps hold sums, it walks the
    contraction several times. The kernel reads no row and no 64 columns without a live block.
    """

    name = "tma_block_sdd"
    summary = "the live blocks of a product of dense matrices, each on a warp's tensor cores, of large tiles"
    source = (
        "Lo: Efficient Sparse Training with Structured Dropout (block-sparse products that skip dropped blocks); warps "
        "that load beside warps that multiply: NVIDIA, Hopper tuning guide"
    )
    size_names = ("m", "k", "n")
    packed_names = ()
    mapped_names = ("d", "w")

    def scope(self, problem: SddProblem) -> Iterator[Constraint]:
        side, block = Side.of(problem), problem.block
        yield batch_in_grid(problem)
        yield Constraint(
            problem.dtype.itemsize == 2 and problem.factor_type is FactorType.SAME,
            "warps multiply 16-bit elements",
        )
        yield Constraint(
            block.rows in SIDES and block.columns in SIDES, f"blocks ({block}) have sides of 16 or 32"
        )
        yield Constraint(
            all(size * problem.dtype.itemsize % CHUNK_BYTES == 0 for size in (side.inner, side.columns)),
            f"rows of the arrays (k = {problem.k}, n = {problem.n} elements) are whole chunks of 16 bytes",
        )

    def constraints(
        self, problem: SddProblem, config: TmaBlockSddConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield next(ring_constraints(device))
        yield shared_memory_fits("stages", self._shared_bytes(config), device)

    def is_worth_trying(self, problem: SddProblem, config: TmaBlockSddConfig, device: Device) -> bool:
        """True unless a tile is twice as large as the result or larger: such tiles are mostly padding."""
        side = Side.of(problem)
        return config.tile_m < 2 * max(PIECE, side.rows) and config.tile_n < 2 * max(2 * PIECE, side.columns)

    def constants(self, problem: SddProblem, config: TmaBlockSddConfig) -> Mapping[str, Value]:
        side = Side.of(problem)
        return {
            "dtype": problem.dtype.value,
            "entry": self.entry,
            **side.constants,
            "fills": side.fills,
            "stages": self._stages(config),
            **batch_constants(problem),
        }

    def tensor_map(self, problem: SddProblem, config: TmaBlockSddConfig, name: str) -> TensorMap:
        side, is_a, size = Side.of(problem), name == "d", problem.dtype.itemsize
        outer, box_rows = (side.rows, side.row_block) if is_a else (side.columns, PIECE)
        sizes = (side.inner, outer) if is_a or side.b_by_inner else (outer, side.inner)
        is_batch, row_bytes = problem.batch > 1, sizes[0] * size
        return TensorMap(
            array=name,
            dtype=problem.dtype,
            sizes=(*sizes, problem.batch) if is_batch else sizes,
            strides=(row_bytes, row_bytes * sizes[1]) if is_batch else (row_bytes,),
            box=(STEP, box_rows, 1) if is_batch else (STEP, box_rows),
            swizzle=Swizzle.BYTES_128,
        )

    def pack(self, problem: SddProblem, config: TmaBlockSddConfig, matrix: CsrMatrix) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz)

    def launch(
        self, problem: SddProblem, config: TmaBlockSddConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(self._tiles(problem, config), 1, problem.batch),
            block=(THREADS, 1, 1),
            shared_memory_bytes=self._shared_bytes(config),
            starts_early=True,
        )

    def heuristic(self, problem: SddProblem, features: Features, device: Device) -> TmaBlockSddConfig:
        """Returns the tiles with the least expected time; of those that are expected to take as long, the largest."""
        some = [
            self.config_type(tile_m=tile_m, tile_n=tile_n, cluster=cluster)
            for tile_m in (256, 128, 64)
            for tile_n in (512, 256, 128)
            for cluster in (1, 2)
        ]
        return self.fastest(problem, features, some, device)

    def analytic_us(
        self, problem: SddProblem, features: Features, config: TmaBlockSddConfig, device: Device
    ) -> float:
        """Waves of tiles, each as long as its loads or as the fragments of its live blocks."""
        c, rates, side, share = config, device.expected_rates, Side.of(problem), problem.density.share
        strips = min(self._blocks(side, c)[0], side.mask_rows)
        of_row = ceil_div(side.columns, side.inner_block)
        in_strip = of_row / ceil_div(
            of_row, self._blocks(side, c)[1]
        )  # on average: the last tile may be narrow
        blocks = strips * in_strip
        units = (side.row_block // UNIT) * (side.inner_block // UNIT)
        live = share * blocks
        most = live + 2 * math.sqrt(live * (1 - share))
        walks = max(1, math.ceil(most * units / (WARPS * UNITS)))
        rows = strips * side.row_block * any_live(share, in_strip)
        columns = in_strip * side.inner_block * any_live(share, strips * c.cluster * PIECE / side.inner_block)
        stage = walks * (rows + columns / c.cluster) * ROW_BYTES  # bytes that a block asks for
        fragments = most * (side.row_block + side.inner_block) / UNIT * (STEP // UNIT)
        cycles = max(stage / LOADED_PER_CYCLE, stage / ROW_BYTES + fragments * FRAGMENT_CYCLES)
        rounds = ceil_div(self._tiles(problem, c) * problem.batch, device.multiprocessors)
        each = START_US + ceil_div(side.inner, STEP) * cycles / rates.clock_mhz
        moved = problem.cost(0).bytes / rates.copy_bytes_per_us
        return rates.launch_us + max(moved, rounds * each)

    def _tiles(self, problem: SddProblem, config: TmaBlockSddConfig) -> int:
        """The number of tiles of a batch element."""
        side, cluster = Side.of(problem), config.cluster
        row_tiles = cluster * ceil_div(side.mask_rows, cluster * self._blocks(side, config)[0])
        return row_tiles * ceil_div(side.columns, config.tile_n)

    @staticmethod
    def _blocks(side: Side, config: TmaBlockSddConfig) -> tuple[int, int]:
        """The number of rows of blocks in a tile, and of blocks in each."""
        return max(1, config.tile_m // side.row_block), max(1, config.tile_n // side.inner_block)

    @staticmethod
    def _stages(config: TmaBlockSddConfig) -> int:
        return min(MOST_STAGES, STAGE_BYTES // ((config.tile_m + config.tile_n) * ROW_BYTES))

    @classmethod
    def _shared_bytes(cls, config: TmaBlockSddConfig) -> int:
        return cls._stages(config) * (config.tile_m + config.tile_n) * ROW_BYTES + BARRIER_BYTES


FAMILY = TmaBlockSdd()
