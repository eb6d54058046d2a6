"""``block_attention_backward`` on tensor cores of single warps, with tiles copied asynchronously."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.attention.block_attention import (
    ALIGNED,
    BlockAttentionFamily,
    in_chunks,
    in_steps,
    mask_sizes,
    whole_columns,
)
from sparsegen.kernels.attention.gradient_attention import (
    STEP,
    TILE,
    computed_places,
    gradient_constants,
    gradient_scratch,
    longest_tiles,
    whole_pieces,
)
from sparsegen.kernels.attention.mma_attention import ROWS, WARPGROUPS, reached
from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import TENSOR_CORES, capable, shared_memory_fits
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import BlockAttentionBackwardProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

WIDEST = 128  # columns whose sums fit the registers
# The list of steps; of a pair of stages barriers and values of rows.
STATE_BYTES, PAIR_STATE_BYTES = 1280, 576
OF_TILES = 0.8  # of the rate that the forward pass reaches, as fragments serve 16 rows (H200)
PRODUCTS = 7 / 5  # products that are computed for each that is counted
OF_SMALL = 1.4  # times the time, in tiles of 4 warps (H200)
START_US, TILE_US = 12.0, 4.0
STEP_US = 4.0  # of a step of 128 columns whose multiprocessor has no other tile (H200)


@dataclass(frozen=True)
class MmaAttentionBackwardConfig(Config):
    """One point of the tuning space of `mma_attention_backward`."""

    tile: int = tunable(128, (64, 128), "keys or queries of a tile, 16 for each warp", packs=True)
    pairs: int = tunable(2, (2, 3, 4), "pipeline stages: pairs of tiles of two matrices in shared memory")


class MmaAttentionBackward(BlockAttentionFamily[BlockAttentionBackwardProblem, MmaAttentionBackwardConfig]):
    """A persistent kernel in one launch: what tiles share is prepared, then each tile is computed by one block.

    Tiles of keys meet all queries that see any of them, tiles of queries all keys that they see, which compute the
    scores again, so that equal inputs give equal bits.
    """

    name = "mma_attention_backward"
    summary = "gradients of attention over live blocks, on tensor cores of single warps"
    source = "Dao: FlashAttention-2, 2023, section 3.1.2 (backward pass by blocks of keys)"
    size_names = ("queries", "keys", "kv_heads", "group", "batch")
    scratch_names = ("counters", "row_values", "tile_order", "mask_ranks")

    def scope(self, problem: BlockAttentionBackwardProblem) -> Iterator[Constraint]:
        yield from super().scope(problem)
        yield whole_columns(problem, WIDEST)
        yield Constraint(
            problem.value_columns % ALIGNED == 0 and problem.value_columns <= in_chunks(problem.head_dim),
            f"value_dim ({problem.value_columns}) is a multiple of {ALIGNED} up to whole pieces of head_dim "
            f"({problem.head_dim})",
        )
        yield whole_pieces(problem)

    def constraints(
        self, problem: BlockAttentionBackwardProblem, config: MmaAttentionBackwardConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield capable(device, TENSOR_CORES)
        yield shared_memory_fits("stages", _shared_bytes(problem, config), device)

    def is_worth_trying(
        self, problem: BlockAttentionBackwardProblem, config: MmaAttentionBackwardConfig, device: Device
    ) -> bool:
        """True unless the device has warpgroups, which multiply faster."""
        return device.compute_capability[0] != WARPGROUPS

    def constants(
        self, problem: BlockAttentionBackwardProblem, config: MmaAttentionBackwardConfig
    ) -> Mapping[str, Value]:
        return {
            **gradient_constants(problem),
            "tile": config.tile,
            "pairs": config.pairs,
            "stages_keys": False,
            "state_bytes": _state_bytes(config),
        }

    def pack(
        self, problem: BlockAttentionBackwardProblem, config: MmaAttentionBackwardConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        scratch = gradient_scratch(problem, _tiles(problem, config))
        return Packed(arrays={}, sizes=mask_sizes(problem), nnz=matrix.nnz, scratch=scratch)

    def launch(
        self,
        problem: BlockAttentionBackwardProblem,
        config: MmaAttentionBackwardConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        blocks = max(1, min(_tiles(problem, config), device.multiprocessors))
        threads = WARP * config.tile // ROWS
        return Launch((blocks, 1, 1), (threads, 1, 1), _shared_bytes(problem, config), together=True)

    def heuristic(
        self, problem: BlockAttentionBackwardProblem, features: Features, device: Device
    ) -> MmaAttentionBackwardConfig:
        """The tallest tile, and as many stages as fit."""
        configs = [self.config_type(tile=tile, pairs=pairs) for tile in (128, 64) for pairs in (3, 2)]
        return next((c for c in configs if self.is_valid(problem, c, device)), configs[-1])

    def analytic_us(
        self,
        problem: BlockAttentionBackwardProblem,
        features: Features,
        config: MmaAttentionBackwardConfig,
        device: Device,
    ) -> float:
        rates, cost, tiles = device.expected_rates, problem.cost(0), _tiles(problem, config)
        columns = in_steps(problem.head_dim)
        rate = OF_TILES * reached(device, columns) * rates.tensor_products_per_us(problem.dtype)
        own = columns / problem.head_dim * computed_places(problem, config.tile)
        products = cost.flop / 2 * PRODUCTS * own / rate * (1.0 if config.tile == TILE else OF_SMALL)
        rounds = max(1.0, tiles / device.multiprocessors)
        moved, longest = cost.bytes / rates.copy_bytes_per_us, longest_tiles(problem, config.tile)
        steps_us = max(longest.of_keys, longest.of_queries) * STEP_US * in_chunks(problem.head_dim) / WIDEST
        return rates.launch_us + START_US + moved + rounds * TILE_US + max(products, steps_us)


def _tiles(problem: BlockAttentionBackwardProblem, config: MmaAttentionBackwardConfig) -> int:
    """Counts tiles of keys and of queries."""
    of_keys = problem.batch * problem.kv_heads * ceil_div(problem.keys, config.tile)
    return of_keys + problem.batch * problem.heads * ceil_div(problem.queries, config.tile)


def _shared_bytes(problem: BlockAttentionBackwardProblem, config: MmaAttentionBackwardConfig) -> int:
    """Two matrices of a tile, pairs of stages, and what lies behind them."""
    row = in_chunks(problem.head_dim) * problem.dtype.itemsize
    return 2 * (config.tile + config.pairs * STEP) * row + _state_bytes(config)


def _state_bytes(config: MmaAttentionBackwardConfig) -> int:
    return STATE_BYTES + config.pairs * PAIR_STATE_BYTES


FAMILY = MmaAttentionBackward()
