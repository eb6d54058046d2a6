"""``block_attention`` on tensor cores of single warps, with tiles copied asynchronously (compute capability 8.0)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sparsegen.kernels.attention.block_attention import BIT_WORD, in_chunks, in_steps, mask_sizes
from sparsegen.kernels.attention.forward_attention import (
    ForwardAttentionFamily,
    forward_constants,
    longest_share,
    mask_block,
    section_heads,
    tile_count,
)
from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import (
    TENSOR_CORES,
    capable,
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import BlockAttentionProblem, Cost, TokenOrder
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

ROWS = 16  # of an instruction
STATE_BYTES = 2560  # barriers, the list of live blocks, and numbers of partial ones
SECTION = 16  # MiB of keys and values of the heads that are processed together
WORD_BITS = 32  # of a part in the list: its number, and a bit for each piece of a tile
LEAST_QUERIES = 64  # of a tile
WARPGROUPS = 9  # the compute capability whose warpgroups multiply faster
# Fraction of the tensor cores' rate that instructions of a warp reach with wide rows, by compute capability: measured
# on an H200, else estimated.
REACHED, OTHERWISE = {9: 0.51, 10: 0.25}, 0.8
STEADY_KEYS = 64  # of a step
MANY_WARPS = 16  # of a multiprocessor, of which some always have a live step
EXPONENTIAL_COLUMNS = 20  # of a product, which take as long as what a score costs beside
START_US, TILE_US = 5.0, 1.5  # of 64 queries that begin and end
ALONE = {4: 0.6, 8: 1.0, 16: 1.0}  # of a multiprocessor's rate that a block reaches, by its warps; estimated


@dataclass(frozen=True)
class MmaAttentionConfig(Config):
    """One point of the tuning space of `mma_attention`."""

    warps: int = tunable(4, (4, 8, 16), "warps that share a tile's keys")
    row_tiles: int = tunable(1, (1, 2), "queries of a warp, in instructions of 16")
    stage_keys: int = tunable(64, (32, 64), "keys of a step")
    stages: int = tunable(2, (2, 3, 4), "pipeline stages: tiles of K and V in shared memory")
    queries: str = tunable(
        "registers",
        ("registers", "shared"),
        "where the kernel keeps fragments of Q: registers or shared memory",
    )
    resident_blocks: int = tunable(1, (1, 2, 3), "occupancy: thread blocks of a multiprocessor")


class MmaAttention(ForwardAttentionFamily[MmaAttentionConfig]):
    """A block takes a tile of queries of one head through its live blocks of keys, 16 or 32 queries for each warp.

    A warp skips what none of its own queries sees, so that small blocks cost the union of the rows of a warp in
    products, and that of a tile in bytes. Weights stay in registers between the two products; exponentials are taken
    against the reference that a row has before its scores are known.
    """

    name = "mma_attention"
    summary = "attention over live blocks, on tensor cores of single warps"
    source = (
        "Dao: FlashAttention-2, 2023 (warps split a tile's queries); Milakov and Gimelshein: Online normalizer "
        "calculation for softmax"
    )
    size_names = ("queries", "keys", "kv_heads", "group", "batch", "section")

    def constraints(
        self, problem: BlockAttentionProblem, config: MmaAttentionConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield capable(device, TENSOR_CORES)
        rows, keys = mask_block(problem)
        pieces = max(1, _queries(config) // rows)
        parts = ceil_div(problem.keys, min(keys, config.stage_keys))
        yield Constraint(
            parts.bit_length() + pieces <= WORD_BITS,
            f"numbers of {parts} parts of the keys, and bits for {pieces} rows of the mask, fit {WORD_BITS} bits",
        )
        yield Constraint(
            not problem.has_partial or config.stage_keys % BIT_WORD == 0,
            f"stages of keys ({config.stage_keys}) have whole words of a partial block's rows",
        )
        threads = WARP * config.warps * config.resident_blocks
        yield enough_registers(_registers(problem, config), threads, at_a_time=8)
        shared = _shared_bytes(problem, config)
        yield shared_memory_fits("stages", shared, device)
        yield resident_blocks_fit(config.resident_blocks, shared, device)

    def is_worth_trying(
        self, problem: BlockAttentionProblem, config: MmaAttentionConfig, device: Device
    ) -> bool:
        """True unless the device has warpgroups, which multiply faster (an H200 took 1.0 to 2.3 times as long with
        blocks of all sizes), or a tile is twice as large as the problem or larger.
        """
        is_fitting = _queries(config) < 2 * max(LEAST_QUERIES, problem.queries)
        return is_fitting and device.compute_capability[0] != WARPGROUPS

    def constants(self, problem: BlockAttentionProblem, config: MmaAttentionConfig) -> Mapping[str, Value]:
        return {
            **forward_constants(problem, _queries(config), config.stage_keys),
            "columns": problem.head_dim,
            "value_columns": problem.value_columns,
            "tokens_first": problem.order is TokenOrder.TOKENS,
            "state_bytes": STATE_BYTES,
        }

    def pack(
        self, problem: BlockAttentionProblem, config: MmaAttentionConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        sizes = {"section": section_heads(problem, SECTION), **mask_sizes(problem)}
        return Packed(arrays={}, sizes=sizes, nnz=matrix.nnz)

    def launch(
        self,
        problem: BlockAttentionProblem,
        config: MmaAttentionConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        tiles = tile_count(problem, _queries(config))
        return Launch((tiles, 1, 1), (WARP * config.warps, 1, 1), _shared_bytes(problem, config))

    def heuristic(
        self, problem: BlockAttentionProblem, features: Features, device: Device
    ) -> MmaAttentionConfig:
        """The tile that should be fastest, with as many stages as fit."""
        shapes = [
            self.config_type(
                warps=warps,
                row_tiles=row_tiles,
                stage_keys=stage_keys,
                stages=stages,
                queries=queries,
                resident_blocks=resident_blocks,
            )
            for warps, row_tiles, stage_keys, stages, queries, resident_blocks in itertools.product(
                (4, 8, 16), (2, 1), (64, 32), (4, 3, 2), ("registers", "shared"), (2, 1, 3)
            )
        ]
        return self.fastest_valid(problem, features, shapes, device)

    def analytic_us(
        self, problem: BlockAttentionProblem, features: Features, config: MmaAttentionConfig, device: Device
    ) -> float:
        rates, queries = device.expected_rates, _queries(config)
        cost, tiles = _cost(problem), max(1, tile_count(problem, queries))
        columns, of_tile = in_steps(problem.head_dim), _union(problem, queries, 1)
        rate = reached(device, columns) * _efficiency(config) * rates.tensor_products_per_us(problem.dtype)
        of_warp = _union(problem, ROWS * config.row_tiles, config.stage_keys)
        computed = of_warp * math.pow(max(1.0, of_tile / of_warp), _waiting(config))
        products = cost.flop / 2 * columns / problem.head_dim * computed / rate
        read = cost.flop / 2 / queries * problem.dtype.itemsize * of_tile / device.l2_bytes_per_us
        rounds = max(1.0, tiles * queries / LEAST_QUERIES / device.multiprocessors)
        longest = longest_share(problem, features, tiles) * products * device.multiprocessors
        alone = TILE_US + longest / ALONE[config.warps]
        steady = max(rounds * TILE_US + products, read)
        return rates.launch_us + START_US + max(cost.bytes / rates.copy_bytes_per_us, steady, alone)


@lru_cache(maxsize=4)
def _cost(problem: BlockAttentionProblem) -> Cost:
    """The problem's cost, which hundreds of configs are asked about in turn."""
    return problem.cost(0)


def reached(device: Device, columns: int) -> float:
    """Estimates the fraction of the tensor cores' rate that instructions of single warps reach."""
    wide = REACHED.get(device.compute_capability[0], OTHERWISE)
    return wide * columns / (columns + EXPONENTIAL_COLUMNS)


def _queries(config: MmaAttentionConfig) -> int:
    """Queries of a tile."""
    return ROWS * config.row_tiles * config.warps


def _union(problem: BlockAttentionProblem, rows: int, keys: int) -> float:
    """Places for each live one of ``rows`` queries and ``keys`` keys that are computed if any of them lives."""
    if not problem.has_mask:
        return 1.0
    blocks = max(1, rows // problem.block.rows) * max(1, keys // problem.block.columns)
    return any_live(problem.density.share, blocks) / problem.density.share


def _waiting(config: MmaAttentionConfig) -> float:
    """Returns how much of the steps that a warp skips it waits for the others of its tile: the power of what a tile
    computes over what a warp does (H200: 0.5 to 0.9).
    """
    return (0.6 if config.warps * config.resident_blocks >= MANY_WARPS else 0.8) + (
        0.1 if config.stages == 2 else 0.0
    )


def _efficiency(config: MmaAttentionConfig) -> float:
    """Returns how fast warps multiply, of the fastest: fragments of K and V serve 16 queries or 32, a step costs more
    than its products, and two warps of a scheduler hide each other's exponentials (H200).
    """
    of_rows = 1.0 if config.row_tiles == 2 else 0.94
    of_steps = 1.0 if config.stage_keys >= STEADY_KEYS else 0.85
    return of_rows * of_steps * min(1.0, 0.6 + 0.05 * config.warps * config.resident_blocks)


def _registers(problem: BlockAttentionProblem, config: MmaAttentionConfig) -> int:
    """Estimates a thread's registers: sums of results and of scores, fragments, and what else a warp keeps."""
    width = in_steps(problem.head_dim)
    fragments = width // 4 if config.queries == "registers" else 4
    sums = in_steps(problem.value_columns) // 2 + config.stage_keys // 2
    return config.row_tiles * (sums + fragments + 4) + 24


def _shared_bytes(problem: BlockAttentionProblem, config: MmaAttentionConfig) -> int:
    """The queries, the stages, and what lies behind them."""
    row, value_row = (
        in_chunks(columns) * problem.dtype.itemsize for columns in (problem.head_dim, problem.value_columns)
    )
    return _queries(config) * row + config.stages * config.stage_keys * (row + value_row) + STATE_BYTES


FAMILY = MmaAttention()
