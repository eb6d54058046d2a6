"""Sparse attention in one launch: scores and weights of a tile of queries stay in registers, tile by tile of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.attention.key_tiles import KeyTiles
from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import (
    TENSOR_CORES,
    capable,
    enough_registers,
    resident_blocks,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import BLOCK, Features
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.operators import DType, SparseAttentionProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

WIDEST = 256  # widest head
PRODUCTS = 0.585  # fraction of the tensor cores' rate
WEIGHTS = 13.2  # scores of a clock of a multiprocessor that become weights, which no product of the warp runs beside
START_US, START_COLUMN_US = 1.5, 0.07  # that 256 queries take to begin and end, and for each column of a head
SMALL_PARTS, SHORT_STEPS = 0.85, 0.94  # of these rates that warps with 16 queries reach, and steps of 32 keys
# What a block waits for by itself: to begin and end, and in a step for each column of a head, for each column and key,
# and for each score.
BLOCK_US, STEP_COLUMN_US, KEY_COLUMN_US, PAIR_US = 3.1, 3.86e-3, 1.07e-4, 9.3e-5
NEWTON_STEPS = 12
UNEVEN = 1.5  # times the mean of tiles, from which on the longest rows of all heads begin first
TRIANGLE = 0.9  # of the tiles below the diagonal, from which on a mask is taken to be causal
LEAST_FILLED = 1 / 128  # filled fraction of listed tiles; with less the three steps are far faster


@dataclass(frozen=True)
class FusedAttentionConfig(Config):
    """One point of the tuning space of `FusedAttention`."""

    tile_m: int = tunable(64, (64, 128, 256), "queries of a block", packs=True)
    tile_n: int = tunable(64, (32, 64, 128), "keys of a step", packs=True)
    warps: int = tunable(4, (4, 8), "warps over a tile's queries, 16 or 32 for each")
    stages: int = tunable(
        2,
        (2, 3, 4),
        "pipeline stages: tiles of K and V in shared memory; the next ones load while one is used",
    )
    queries: str = tunable(
        "registers",
        ("registers", "shared"),
        "where the kernel keeps fragments of Q: registers or shared memory",
    )
    resident_blocks: int = tunable(
        2,
        (1, 2, 3),
        "occupancy: blocks whose registers must fit on a multiprocessor; more leave a thread fewer",
    )
    order: str = tunable(
        "longest_first",
        ("natural", "longest_first"),
        "tiles of queries as they are, or those with most keys first",
        packs=True,
    )
    heads_together: bool = tunable(
        False,
        (False, True),
        "blocks of all heads of a tile of queries follow each other, else those of a head",
    )


SHAPES = tuple(
    FusedAttentionConfig(
        tile_m=tile_m, tile_n=tile_n, warps=warps, queries=queries, resident_blocks=resident_blocks
    )
    for tile_m, tile_n, warps, queries, resident_blocks in (
        (128, 64, 4, "shared", 2),
        (128, 64, 8, "registers", 1),
        (64, 128, 4, "registers", 1),
        (64, 64, 4, "registers", 3),
        (64, 64, 4, "registers", 2),
        (128, 32, 4, "shared", 2),
        (64, 32, 4, "registers", 3),
        (64, 32, 4, "shared", 2),
        (64, 32, 4, "shared", 1),
    )
)


class FusedAttention(Family[SparseAttentionProblem, FusedAttentionConfig]):
    """A block takes a tile of queries of one head through the tiles of keys that any of them sees.

    Scores are computed whole on tensor cores, and bits tell which count. Weights are relative to a score that each
    query has met; when a much larger one comes, it takes its place and what was summed up shrinks. A warp's weights go
    from the sums of the first product into the operands of the second without leaving its registers. The mask costs 8
    bytes for each listed tile and ``tile_m`` · ``tile_n`` / 8 for each different pattern of bits, for all heads
    together.
    """

    name = "fused_attention"
    summary = "Sparse attention in one launch: tiles of scores on tensor cores, softmax as they come"
    source = (
        "online softmax: Milakov and Gimelshein, 2018; tiles and their order: Dao, FlashAttention-2, 2023; lists of "
        "tiles, full and partial: as the block masks of Dong et al., FlexAttention, 2024; rare rescaling: "
        "FlashAttention-4"
    )
    size_names = ("m", "n", "batch", "tasks")
    packed_names = ("tiles", "entries", "bits")

    def scope(self, problem: SparseAttentionProblem) -> Iterator[Constraint]:
        yield Constraint(problem.dtype is not DType.FLOAT32, f"elements ({problem.dtype}) have 16 bits")
        yield Constraint(
            problem.k % 8 == 0 and problem.k <= WIDEST,
            f"head_dim, k ({problem.k}), is a multiple of 8, at most {WIDEST}",
        )

    def constraints(
        self, problem: SparseAttentionProblem, config: FusedAttentionConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, TENSOR_CORES)
        rows = c.tile_m // c.warps
        yield Constraint(
            rows in (16, 32), f"each of warps ({c.warps}) takes 16 or 32 of tile_m ({c.tile_m}) queries"
        )
        yield Constraint(
            c.tile_m <= 2 * c.stages * c.tile_n,
            f"results of tile_m ({c.tile_m}) queries fit the memory of K and V for stages · tile_n "
            f"({c.stages * c.tile_n}) keys",
        )
        yield enough_registers(self._registers(problem, c), WARP * c.warps * c.resident_blocks, at_a_time=8)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("stages", shared, device)
        yield resident_blocks_fit(c.resident_blocks, shared, device)
        blocks = ceil_div(problem.m, c.tile_m) * problem.batch
        yield Constraint(
            blocks <= MAX_INDEX, f"tiles of queries of a batch of heads ({blocks}) are at most {MAX_INDEX}"
        )

    def requirements(
        self, problem: SparseAttentionProblem, features: Features, config: FusedAttentionConfig
    ) -> Iterator[Constraint]:
        tiles = expected_tiles(features, config.tile_m, config.tile_n)
        filled = features.nnz / (tiles * config.tile_m * config.tile_n) if tiles else 1.0
        yield Constraint(
            filled >= LEAST_FILLED,
            f"tiles of {config.tile_m} queries by {config.tile_n} keys have a nonzero in one place of "
            f"{1 / LEAST_FILLED:.0f} or more ({filled:.2%} of them expected)",
        )

    @staticmethod
    def _registers(problem: SparseAttentionProblem, config: FusedAttentionConfig) -> int:
        """Estimates a thread's registers: sums of results and of scores, fragments, running totals, and about 34 for
        addresses.
        """
        padded = round_up(problem.k, 16)
        fragments = padded // 4 if config.queries == "registers" else 4
        row_tiles = config.tile_m // (16 * config.warps)
        return row_tiles * (padded // 2 + config.tile_n // 2 + fragments + 4) + 34

    @staticmethod
    def _shared_bytes(problem: SparseAttentionProblem, config: FusedAttentionConfig) -> int:
        """The stages of K, V and bits, and the queries if they stay there; rows are padded as the kernel's are."""
        padded = 1 << (max(16, problem.k) - 1).bit_length() if problem.k <= 64 else round_up(problem.k, 64)
        rows = 2 * config.stages * config.tile_n + (config.tile_m if config.queries == "shared" else 0)
        return rows * padded * problem.dtype.itemsize + config.stages * config.tile_m * config.tile_n // 8

    def is_worth_trying(
        self, problem: SparseAttentionProblem, config: FusedAttentionConfig, device: Device
    ) -> bool:
        """True unless tiles are twice as large as the problem or larger, heads would be shared in a batch of one, or
        two blocks of 256 queries and 8 warps should share a multiprocessor. It rests on arithmetic: the padding of
        large tiles, and the registers of that many threads.
        """
        c = config
        if c.tile_m >= 2 * max(64, problem.m) or c.tile_n >= 2 * max(32, problem.n):
            return False
        if c.tile_m == 256 and c.warps == 8 and c.resident_blocks > 1:
            return False
        return c.heads_together is False or problem.batch > 1

    def constants(self, problem: SparseAttentionProblem, config: FusedAttentionConfig) -> Mapping[str, Value]:
        return {"dtype": problem.dtype.value, "k": problem.k, "divides_n": problem.n % config.tile_n == 0}

    def pack(
        self, problem: SparseAttentionProblem, config: FusedAttentionConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        listed = KeyTiles.of(matrix, config.tile_m, config.tile_n)
        counts = listed.counts
        order = np.arange(counts.size)
        if config.order == "longest_first":
            order = np.argsort(-counts, kind="stable")
        begins = np.cumsum(counts) - counts
        tasks = np.column_stack((order, begins[order], counts[order], np.zeros_like(order))).astype(np.int32)
        arrays = {
            "tiles": empty_as_one(tasks),
            "entries": empty_as_one(np.column_stack((listed.keys, listed.bits))),
            "bits": empty_as_one(listed.words),
        }
        return Packed(arrays, {"tasks": counts.size}, matrix.nnz)

    def expected_sizes(
        self, problem: SparseAttentionProblem, features: Features, config: FusedAttentionConfig
    ) -> Mapping[str, int]:
        return {"tasks": ceil_div(features.m, config.tile_m)}

    def launch(
        self,
        problem: SparseAttentionProblem,
        config: FusedAttentionConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(sizes["tasks"] * problem.batch, 1, 1),
            block=(WARP * config.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self,
        problem: SparseAttentionProblem,
        features: Features,
        config: FusedAttentionConfig,
        device: Device,
    ) -> float:
        return device.expected_rates.launch_us + self._microseconds(problem, features, config, device)

    def counted_us(
        self, problem: SparseAttentionProblem, counts: Array, config: FusedAttentionConfig, device: Device
    ) -> float:
        """Expected time for a mask where each tile of queries sees ``counts`` tiles of keys (`tile_counts`).

        The multiprocessors share the work evenly, but the longest tile of queries is a thread block's alone.
        """
        longest = float(counts.max(initial=0))
        work = self._work_us(problem, float(counts.sum()), longest, max(1, counts.size), config, device)
        return device.expected_rates.launch_us + work

    def _microseconds(
        self,
        problem: SparseAttentionProblem,
        features: Features,
        config: FusedAttentionConfig,
        device: Device,
    ) -> float:
        """The same with the tiles that features tell of, beside the launch."""
        tasks = max(1, ceil_div(features.m, config.tile_m))
        tiles = expected_tiles(features, config.tile_m, config.tile_n)
        longest = longest_tiles(features, tiles / tasks, config.tile_m, config.tile_n)
        return self._work_us(problem, tiles, longest, tasks, config, device)

    @staticmethod
    def _work_us(
        problem: SparseAttentionProblem,
        tiles: float,
        longest: float,
        tasks: int,
        config: FusedAttentionConfig,
        device: Device,
    ) -> float:
        """The largest of what all ``tiles`` of a head's ``tasks`` rows of them keep multiprocessors busy, of what their
        blocks wait for, one after the other, and of the longest row.

        It is within 15 % of all times measured with masks of windows, bands, blocks and places (H100, H200).
        """
        c, rates, multiprocessors = config, device.expected_rates, device.multiprocessors
        # Fragments of K and V serve 16 queries or 32, and what a step costs beside products is for its keys.
        efficiency = 1.0 if c.tile_m // c.warps == 32 else SMALL_PARTS
        efficiency *= 1.0 if c.tile_n >= 64 else SHORT_STEPS
        products = PRODUCTS * rates.tensor_products_per_us(problem.dtype) / multiprocessors
        of_element = 2 * problem.k / products + 1 / (WEIGHTS * rates.clock_mhz)
        of_tile, start = c.tile_m * c.tile_n * of_element / efficiency, START_US * c.tile_m / 256
        start += START_COLUMN_US * problem.k * c.tile_m / 256
        step = problem.k * (STEP_COLUMN_US + KEY_COLUMN_US * c.tile_n) + PAIR_US * c.tile_m * c.tile_n
        mean, waves = tiles / tasks, problem.batch * tasks / multiprocessors
        evenness = max(0.0, 2.0 - longest / max(mean, 1e-9))  # short tiles fill up the last wave
        registers = FusedAttention._registers(problem, c)
        resident = resident_blocks(
            WARP * c.warps, registers, FusedAttention._shared_bytes(problem, c), device
        )
        rounds = waves / max(resident, c.resident_blocks)
        together = (waves + evenness * (math.ceil(waves) - waves)) * (start + mean * of_tile)
        waited = (rounds + evenness * (math.ceil(rounds) - rounds)) * (BLOCK_US + mean * step)
        # The longest row of the last head begins behind the other heads, or behind all, but for what is resident.
        behind = 1.0 if c.order == "natural" else 0.0 if c.heads_together else 1.0 - 1.0 / problem.batch
        late = max(0.0, behind - 1.0 / max(1e-9, rounds)) * together + (longest - mean) * step
        return max(together, waited, late, BLOCK_US + longest * step)

    def heuristic(
        self, problem: SparseAttentionProblem, features: Features, device: Device
    ) -> FusedAttentionConfig:
        """The shape that should be fastest, of those that fit; uneven rows of tiles are begun for all heads at once."""
        stages, tasks = 3 if problem.k <= 64 else 2, ceil_div(features.m, 64)
        mean = expected_tiles(features, 64, 64) / max(1, tasks)
        is_uneven = longest_tiles(features, mean, 64, 64) > UNEVEN * mean
        shapes = [
            replace(shape, stages=stages, heads_together=is_uneven and problem.batch > 1) for shape in SHAPES
        ]
        return self.fastest_valid(problem, features, shapes, device, otherwise=SHAPES[-1])


def expected_tiles(features: Features, height: int, width: int) -> float:
    """About how many aligned tiles hold a nonzero, from features: what nonzeros at random places need, or runs of them,
    whichever is more.
    """
    if not features.nnz:
        return 0.0
    rows = ceil_div(features.m, height)
    runs = rows * _columns_of_runs(features, height, width) / width
    tiles = max(_tiles_of_places(features, height, width), runs)
    return min(tiles, float(rows * ceil_div(features.k, width)))


def longest_tiles(features: Features, mean: float, height: int, width: int) -> float:
    """About how many tiles the row of tiles has that has most of them, where they have ``mean`` each.

    It has as many more as the longest row has nonzeros. Where half of all tiles hold a nonzero, the mask is taken to be
    causal, and to hold all in its last rows.
    """
    columns = features.k / width
    if mean * width >= TRIANGLE * _triangle(features, height, width):
        return max(mean, columns)
    return min(max(mean, columns), mean * features.row_max / max(features.row_mean, 1.0))


def _triangle(features: Features, height: int, width: int) -> float:
    """Mean columns of a row of tiles that hold a place below the diagonal."""
    return (features.k + height + width) / 2


def _columns_of_runs(features: Features, height: int, width: int) -> float:
    """Mean columns of a row of tiles, where a row's nonzeros lie in runs, and those of the next one beside them.

    Each run makes blocks of 16 wider than its nonzeros, by what it moves from row to row and what blocks have before
    and behind it; so it does tiles, in proportion. Those of a causal mask end at the triangle.
    """
    held = features.row_mean / features.block_fill
    runs = max(0.0, held - features.row_mean) / (2 * (BLOCK - 1))
    wider = features.row_mean + runs * (height + width - 2)
    return min(wider, max(held, _triangle(features, height, width)), float(features.k))


def _tiles_of_places(features: Features, height: int, width: int) -> float:
    """About how many tiles hold a nonzero where these lie at random in a part of the mask, and none outside it.

    Only one size of that part has blocks of 16 with as many nonzeros, of those that hold any.
    """
    tiles = ceil_div(features.m, height) * ceil_div(features.k, width)
    of_all = features.nnz / (ceil_div(features.m, BLOCK) * ceil_div(features.k, BLOCK))
    of_held = features.block_fill * BLOCK * BLOCK
    of_part = of_held
    for _ in range(
        NEWTON_STEPS
    ):  # to the mean of a Poisson distribution, of which those above 0 have this mean
        of_none = math.exp(-of_part)
        of_part -= (of_part - of_held * (1 - of_none)) / max(1e-9, 1 - of_held * of_none)
    of_part = max(of_part, of_all)
    return tiles * of_all / of_part * (1 - math.exp(-of_part * height * width / (BLOCK * BLOCK)))


FAMILY = FusedAttention()
