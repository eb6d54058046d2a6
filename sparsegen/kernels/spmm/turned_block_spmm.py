"""SpMM for patterns of small blocks on Hopper: blocks of 32 × 32 elements and no others are multiplied (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.copied_ring import (
    COUNTER_BYTES,
    PIECE,
    Order,
    persistent_launch,
    ring_constraints,
    walk_constraint,
)
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.spmm.copied_operands import copied_map, copied_scope
from sparsegen.kernels.spmm.small_blocks import SIDE, SMALL_BLOCK_NAMES, packed_small_blocks
from sparsegen.kernels.spmm.tensor_tiles import block_side, held_share, whole_tiles_requirement
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.integers import ceil_div

ITEM_BYTES = 2
TILE_N = 128  # columns of the result per thread block, 64 for each consumer warpgroup
BLOCK_BYTES = SIDE * SIDE * ITEM_BYTES
PANEL_BYTES = SIDE * TILE_N * ITEM_BYTES  # bytes of a panel of B
SHARED_BYTES_PER_CYCLE = 128
PRODUCTS_PER_CYCLE = 2048  # products of a multiprocessor's tensor cores in a cycle
# Fitted to 677 configs on 46 products on an H100, with a standard deviation of 7 %.
START_US = 2.4
TILE_US = 1.9  # microseconds of a tile of 256 rows: its prologue and epilogue
MOVED = 0.42  # fraction of the time of moving everything once that nothing hides
STEP_CYCLES = 275.0  # the least for a panel
SLOWER = 1.17  # than the counted cycles of shared memory


@dataclass(frozen=True, eq=False, repr=False)
class TurnedBlockSpmmConfig(Config):
    """One point of the tuning space of `turned_block_spmm`."""

    tile_m: int = tunable(256, (64, 128, 256), "rows of C per thread block", packs=True)
    raster: int = tunable(8, (1, 4, 8, 16), "row tiles that are processed before the next column tile")
    order: str = tunable(
        Order.PLACED.value,
        tuple(o.value for o in Order),
        "dynamic (a counter) or static (by position) scheduling of tiles",
    )
    tail: int = tunable(2, (1, 2, 4, 16), "row tiles in each part of the last group, which have least work")


class TurnedBlockSpmm(Family[SpmmProblem, TurnedBlockSpmmConfig]):
    """The product on its side: 64 columns of B are the rows of a warpgroup's product, a block's 32 rows its columns.

    Rows of a warpgroup's product come by 64, but columns by 8, so that blocks of 32 rows are multiplied alone. A tile
    of C has up to eight rows of blocks, and loads of B what any of these meets. The kernel skips blocks without
    nonzeros. In all others it multiplies zeros too, so that an infinity or NaN in B makes NaN even in rows that have no
    nonzero there.
    """

    name = "turned_block_spmm"
    summary = "SpMM of dense blocks of 32: each block alone on warpgroups' tensor cores, B and C by TMA"
    source = (
        "warps that load beside warps that multiply: NVIDIA, Hopper tuning guide; shapes of wgmma: NVIDIA, PTX ISA; "
        "rows of most blocks first: Gale et al., SC 2020, section V-C; the format is block CSR"
    )
    mapped_names = ("b", "c")
    size_names = ("m", "k", "n", "row_tile_count")
    packed_names = SMALL_BLOCK_NAMES
    scratch_names = ("counters",)
    multiplies_zeros = True

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield from copied_scope(problem)
        yield Constraint(problem.layout is Layout.ROW, "columns of B lie side by side (row-major)")

    def constraints(
        self, problem: SpmmProblem, config: TurnedBlockSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield from ring_constraints(device)
        yield walk_constraint(config.raster, config.tail)

    def requirements(
        self, problem: SpmmProblem, features: Features, config: TurnedBlockSpmmConfig
    ) -> Iterator[Constraint]:
        yield whole_tiles_requirement(features)

    def is_worth_trying(self, problem: SpmmProblem, config: TurnedBlockSpmmConfig, device: Device) -> bool:
        """True unless a tile is twice as high as the result or higher: such tiles are mostly padding."""
        return config.tile_m < 2 * max(PIECE, problem.m)

    def constants(self, problem: SpmmProblem, config: TurnedBlockSpmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "a_by_inner": False,
            "b_by_inner": True,
            "by_columns": True,  # for the result with swapped operands
        }

    def tensor_map(self, problem: SpmmProblem, config: TurnedBlockSpmmConfig, name: str) -> TensorMap:
        return copied_map(problem, name, SIDE if name == "b" else PIECE)

    def pack(self, problem: SpmmProblem, config: TurnedBlockSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        packed = packed_small_blocks(problem, config.tile_m, matrix)
        return replace(packed, scratch={"counters": COUNTER_BYTES})

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: TurnedBlockSpmmConfig
    ) -> Mapping[str, int]:
        return {"row_tile_count": ceil_div(problem.m, config.tile_m)}

    def launch(
        self, problem: SpmmProblem, config: TurnedBlockSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return persistent_launch(sizes["row_tile_count"] * ceil_div(problem.n, TILE_N), 1, device)

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> TurnedBlockSpmmConfig:
        """The height of tiles that should take the least time, one thread block at a time, by position."""
        heights = (self.config_type(tile_m=height) for height in (256, 128, 64))
        return self.fastest(problem, features, heights, device)

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: TurnedBlockSpmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        held = held_share(features, SIDE, SIDE)
        blocks, panels = c.tile_m // SIDE, ceil_div(problem.k, SIDE)
        met = any_live(held, max(1.0, c.tile_m / max(SIDE, block_side(features))))
        tile_blocks = panels * blocks * held
        read = tile_blocks * 2 * BLOCK_BYTES + met * panels * PANEL_BYTES  # bytes read by two warpgroups
        written = tile_blocks * BLOCK_BYTES + met * panels * PANEL_BYTES
        shared = SLOWER * (read + written) / SHARED_BYTES_PER_CYCLE
        products = tile_blocks * SIDE * SIDE * TILE_N / PRODUCTS_PER_CYCLE
        cycles = max(shared, products, met * panels * STEP_CYCLES)
        longest = max(1.0, features.row_max / max(1.0, features.row_mean) / 2)
        rounds = _rounds(problem, c.tile_m, device)
        cycle_us = PRODUCTS_PER_CYCLE * device.multiprocessors / rates.tensor_products_per_us(problem.dtype)
        computed = cycles * cycle_us * max(rounds, longest) + TILE_US * rounds * c.tile_m / 256
        stored = held * problem.m * problem.k
        moved = (stored + (problem.k + problem.m) * problem.n) * ITEM_BYTES / rates.copy_bytes_per_us
        us: float = rates.launch_us + START_US + MOVED * moved + computed
        return us


def _rounds(problem: SpmmProblem, height: int, device: Device) -> float:
    """Tiles for each multiprocessor, one at the least."""
    return max(1.0, ceil_div(problem.m, height) * ceil_div(problem.n, TILE_N) / device.multiprocessors)


FAMILY = TurnedBlockSpmm()
