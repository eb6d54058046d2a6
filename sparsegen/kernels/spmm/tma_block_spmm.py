"""SpMM for patterns of large blocks on Hopper: stored tiles, B and C go through TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.copied_ring import (
    COUNTER_BYTES,
    PIECE,
    READ,
    TILE_M,
    Order,
    WalkedTilesConfig,
    persistent_launch,
    ring_constraints,
    walk_constraint,
)
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.spmm.block_tiles import BLOCK_NAMES, HALF_K, TILE_K, packed_blocks
from sparsegen.kernels.spmm.copied_operands import copied_map, copied_scope
from sparsegen.kernels.spmm.tensor_tiles import held_share, whole_tiles_requirement
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.integers import ceil_div

ITEM_BYTES = 2
# Fitted to 1,524 configs on 82 products on an H100, which these describe within 5 % of one another on each.
START_US = 2.55
TILE_US = 1.6  # microseconds of a tile of WIDEST columns: its prologue and epilogue
MOVED = 0.43  # fraction of the time of moving everything once that nothing hides
REACHED = {256: 1.22, 128: 1.05, 64: 0.84}  # fraction of the tensor cores' rate, by a tile's columns
ALONE = 1.13  # times as long a tile takes whose A no other block shares, where every block has several
WIDEST = 256
MOST = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class TmaBlockSpmmConfig(WalkedTilesConfig):
    """One point of the tuning space of `tma_block_spmm`."""

    tile_k: int = tunable(
        TILE_K,
        (HALF_K, TILE_K),
        "columns of a stored tile of A; narrow ones go through stages in pairs",
        packs=True,
    )


class TmaBlockSpmm(Family[SpmmProblem, TmaBlockSpmmConfig]):
    """`tma_dsd` for a pattern that stays: A's tiles of 128 × tile_k elements that have nonzeros are stored whole.

    The kernel skips tiles without nonzeros. In all other tiles it multiplies zeros too, so that an infinity or NaN in B
    makes NaN even in rows that have no nonzero there. Fewer tiles of 32 columns have nonzeros where blocks are small.
    They were not measured on a GPU: the heuristic config keeps to 64, and 32 is for searches.
    """

    name = "tma_block_spmm"
    summary = "SpMM of large dense blocks: stored tiles, B and C by TMA, warpgroups' tensor cores"
    source = (
        "Lo: Efficient Sparse Training with Structured Dropout (block-sparse products); warps that load beside warps "
        "that multiply, and copies for a whole cluster: NVIDIA, Hopper tuning guide; the format is block CSR"
    )
    mapped_names = ("b", "c")
    size_names = ("m", "k", "n", "row_block_count")
    packed_names = BLOCK_NAMES
    scratch_names = ("counters",)
    multiplies_zeros = True

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        return copied_scope(problem)

    def constraints(
        self, problem: SpmmProblem, config: TmaBlockSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        yield from ring_constraints(device)
        yield walk_constraint(c.raster, c.tail)
        yield Constraint(
            c.tile_k == TILE_K or problem.layout is Layout.ROW,
            f"B by columns is copied in whole rows of 128 bytes: {TILE_K} columns of A, not tile_k ({c.tile_k})",
        )

    def requirements(
        self, problem: SpmmProblem, features: Features, config: TmaBlockSpmmConfig
    ) -> Iterator[Constraint]:
        yield whole_tiles_requirement(features)

    def is_worth_trying(self, problem: SpmmProblem, config: TmaBlockSpmmConfig, device: Device) -> bool:
        """True unless a cluster's tiles are twice as wide as the result or wider: such tiles are mostly padding."""
        return config.tile_n * config.cluster < 2 * max(PIECE, problem.n)

    def constants(self, problem: SpmmProblem, config: TmaBlockSpmmConfig) -> Mapping[str, Value]:
        by_columns = problem.layout is Layout.COLUMN
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "a_by_inner": True,
            "b_by_inner": by_columns,
            "by_columns": by_columns,
        }

    def tensor_map(self, problem: SpmmProblem, config: TmaBlockSpmmConfig, name: str) -> TensorMap:
        by_columns = problem.layout is Layout.COLUMN
        if name == "c":
            return copied_map(problem, name, PIECE)
        return copied_map(problem, name, config.tile_n if by_columns else config.tile_k)

    def pack(self, problem: SpmmProblem, config: TmaBlockSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        packed = packed_blocks(problem, TILE_M, config.tile_k, matrix)
        return replace(packed, scratch={"counters": COUNTER_BYTES})

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: TmaBlockSpmmConfig
    ) -> Mapping[str, int]:
        return {"row_block_count": ceil_div(problem.m, TILE_M)}

    def launch(
        self, problem: SpmmProblem, config: TmaBlockSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        tiles = sizes["row_block_count"] * ceil_div(problem.n, config.tile_n * config.cluster)
        return persistent_launch(tiles, config.cluster, device)

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> TmaBlockSpmmConfig:
        """The width of tiles that should take the least time; many tiles in clusters by a counter, few by position.

        Parts of the last group even out rows of different lengths, but B may come from memory again for each.
        """
        start = self.config_type()
        if _comes_again(problem, features, device):
            start = replace(start, tail=start.raster)

        def of(width: int) -> TmaBlockSpmmConfig:
            if _rounds(problem, width, device) > 1:
                return replace(start, tile_n=width)
            return self.config_type(tile_n=width, cluster=1, raster=8, order=Order.PLACED.value)

        return self.fastest(problem, features, map(of, REACHED), device)

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: TmaBlockSpmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        held = held_share(features, TILE_M, c.tile_k)
        if c.tile_k < TILE_K:  # every other row of tiles has one without a partner
            held = min(1.0, held + c.tile_k / 2 / max(1, problem.k))
        longest = max(held, features.row_max / max(1, problem.k))  # longest of all rows of tiles
        rounds = _rounds(problem, c.tile_n, device)
        rate = REACHED[c.tile_n] * rates.tensor_products_per_us(problem.dtype) / device.multiprocessors
        computed = TILE_M * c.tile_n * problem.k * max(held * rounds, longest) / rate
        if c.cluster == 1 and rounds > 1.5:
            computed *= ALONE
        computed += TILE_US * rounds * c.tile_n / WIDEST
        stored = held * problem.m * problem.k
        moved = (stored + (problem.k + problem.m) * problem.n) * ITEM_BYTES / rates.copy_bytes_per_us
        return rates.launch_us + START_US + max(moved / READ, MOVED * moved + computed)


def _comes_again(problem: SpmmProblem, features: Features, device: Device) -> bool:
    """True if most of B is read from memory again for every group of row tiles."""
    met = (problem.k + problem.m) * problem.n * ITEM_BYTES
    return met > device.l2_bytes and held_share(features, TILE_M, TILE_K) > MOST


def _rounds(problem: SpmmProblem, width: int, device: Device) -> float:
    """Tiles for each multiprocessor, one at the least."""
    return max(1.0, ceil_div(problem.m, TILE_M) * ceil_div(problem.n, width) / device.multiprocessors)


FAMILY = TmaBlockSpmm()
