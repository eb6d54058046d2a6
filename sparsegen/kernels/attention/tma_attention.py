"""``block_attention`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.attention.block_attention import (
    CHUNK,
    ROW_BYTES,
    THREADS,
    WIDEST,
    device_constraints,
    in_chunks,
    in_steps,
    mask_sizes,
)
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
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import BlockAttentionProblem, TokenOrder
from sparsegen.operators.masked.masked_problem import UNEVEN
from sparsegen.system.integers import ceil_div

QUERIES = {"together": 128, "single": 64}  # of a tile
STAGE_KEYS = 128  # half as many where there are two rings, unless rows are short
SHARED_ROWS = 128  # of blocks, from which on all queries of a tile see the same keys
WIDE = 128  # columns from which on they leave room for the scores of half a stage
NOTES_BYTES = 2048  # barriers and what the producer says of stages and tiles
MOST_STAGES = 10
SHARED_BYTES = 226 * 1024
COUNTER_BYTES = 64
MOST_ROOMS = 1 << 16  # of parts of long rows, times the queries of a tile
# Fraction of the tensor cores' rate, by columns of a row in shared memory.
REACHED = {64: 0.58, 128: 0.80, 192: 0.6, 256: 0.45}
START_US, TILE_US = 4.0, 1.5
WORTH_SINGLE = 1.1  # tiles of one warpgroup load keys twice, which their expected time does not tell
PLAN_US = 6.0  # all blocks count live blocks and meet twice; estimated from the gradients' preparation


@dataclass(frozen=True)
class TmaAttentionConfig(Config):
    """One point of the tuning space of `tma_attention`."""

    warpgroups: str = tunable(
        "together",
        ("together", "single"),
        "whether two warpgroups share a tile of 128 queries, or each has its own of 64, and keys of its own",
    )
    queries: str = tunable("shared", ("shared", "registers"), "where the tensor cores take queries from")
    section: int = tunable(16, (8, 16, 32), "MiB of keys and values of the heads that are processed together")
    rows: str = tunable(
        "whole",
        ("whole", "split"),
        "whether tiles that see more than 1.5 times the mean number of keys are split over thread blocks and merged",
        packs=True,
    )


class TmaAttention(ForwardAttentionFamily[TmaAttentionConfig]):
    """A persistent kernel: a producer warp loads live blocks by TMA, and two consumer warpgroups multiply.

    Weights stay in registers between the two products; exponentials are taken against the reference that a row has
    before its scores are known.
    """

    name = "tma_attention"
    summary = "attention over live blocks, on warpgroups' tensor cores"
    source = (
        "Shah et al.: FlashAttention-3 (warp specialization, products beside exponentials); Milakov and Gimelshein: "
        "Online normalizer calculation for softmax"
    )
    mapped_names = ("q", "k", "v", "o")
    size_names = ("queries", "keys", "kv_heads", "group", "batch", "section")
    scratch_names = ("counters", "part_memory")

    def constraints(
        self, problem: BlockAttentionProblem, config: TmaAttentionConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield from device_constraints(device, SHARED_BYTES)
        yield Constraint(
            config.queries == "shared" or problem.head_dim <= CHUNK,
            f"queries (head_dim {problem.head_dim}) fit the registers up to {CHUNK} columns",
        )
        yield Constraint(
            config.warpgroups != "single" or problem.head_dim <= WIDE,
            f"two rings of stages (head_dim {problem.head_dim}) fit shared memory up to {WIDE} columns",
        )

    def constants(self, problem: BlockAttentionProblem, config: TmaAttentionConfig) -> Mapping[str, Value]:
        queries = QUERIES[config.warpgroups]
        return {
            **forward_constants(problem, queries, self._stage_keys(problem, config)),
            "stages": self._stages(problem, config),
            "rooms": MOST_ROOMS // queries,
        }

    def tensor_map(self, problem: BlockAttentionProblem, config: TmaAttentionConfig, name: str) -> TensorMap:
        of_keys = name in ("k", "v")
        heads, tokens = (problem.kv_heads, problem.keys) if of_keys else (problem.heads, problem.queries)
        columns = problem.value_columns if name in ("v", "o") else problem.head_dim
        row_bytes = columns * problem.dtype.itemsize
        of_token, of_head = (
            (row_bytes, tokens * row_bytes)
            if problem.order is TokenOrder.HEADS
            else (heads * row_bytes, row_bytes)
        )
        blocks = mask_block(problem)
        rows = {"q": min(blocks[0], 64), "o": 16}.get(name, min(blocks[1], self._stage_keys(problem, config)))
        return TensorMap(
            array=name,
            dtype=problem.dtype,
            sizes=(columns, tokens, heads, problem.batch),
            strides=(of_token, of_head, heads * tokens * row_bytes),
            box=(CHUNK, rows, 1, 1),
            swizzle=Swizzle.BYTES_128,
        )

    def pack(
        self, problem: BlockAttentionProblem, config: TmaAttentionConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        sizes = {"section": section_heads(problem, config.section), **mask_sizes(problem)}
        counters, part_memory = self._split_bytes(problem, config) if config.rows == "split" else (0, 16)
        scratch = {"counters": COUNTER_BYTES + counters, "part_memory": part_memory}
        return Packed(arrays={}, sizes=sizes, nnz=matrix.nnz, scratch=scratch)

    def launch(
        self,
        problem: BlockAttentionProblem,
        config: TmaAttentionConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        if config.rows == "split":
            return Launch((device.multiprocessors, 1, 1), (THREADS, 1, 1), SHARED_BYTES, together=True)
        blocks = max(1, min(tile_count(problem, QUERIES[config.warpgroups]), device.multiprocessors))
        return Launch((blocks, 1, 1), (THREADS, 1, 1), SHARED_BYTES, starts_early=True)

    def heuristic(
        self, problem: BlockAttentionProblem, features: Features, device: Device
    ) -> TmaAttentionConfig:
        """Tiles of one warpgroup for blocks of less than 128 queries, and where shared ones are so few that the longest
        dictates the time, as far as their rings fit; else shared ones. Rows are split if the band or a mask tells of
        one that is so long that it should pay.

        Two rows of random blocks with a quarter live see 44 % of the keys: on an H200, 8192 tokens with a quarter
        of 64 x 64 live take 0.54 (64 columns) and 0.64 (128) of the time, 32 x 32 and 16 x 64 0.56 to 0.86.
        """
        config = self._forms(problem, features, device)[0]
        if problem.density.longest or not problem.has_mask:
            config = self.fastest(problem, features, (config, replace(config, rows="split")), device)
        return config

    def alternatives(
        self, problem: BlockAttentionProblem, features: Features, device: Device
    ) -> tuple[TmaAttentionConfig, ...]:
        """The other tiles."""
        return tuple(self._forms(problem, features, device)[1:])

    def _forms(
        self, problem: BlockAttentionProblem, features: Features, device: Device
    ) -> tuple[TmaAttentionConfig, ...]:
        """Tiles of one warpgroup and shared ones, those that should be faster first."""
        shared = self.config_type()
        if problem.head_dim > WIDE:
            return (shared,)
        in_registers = problem.head_dim <= CHUNK
        single = replace(shared, warpgroups="single", queries="registers" if in_registers else "shared")
        expected, of_shared = (self.analytic_us(problem, features, c, device) for c in (single, shared))
        has_small = problem.has_mask and problem.block.rows < SHARED_ROWS
        return (single, shared) if has_small or WORTH_SINGLE * expected < of_shared else (shared, single)

    def analytic_us(
        self, problem: BlockAttentionProblem, features: Features, config: TmaAttentionConfig, device: Device
    ) -> float:
        rates, tiles = device.expected_rates, tile_count(problem, QUERIES[config.warpgroups])
        cost = problem.cost(0)
        rate = REACHED[min(in_chunks(problem.head_dim), WIDEST)] * rates.tensor_products_per_us(problem.dtype)
        products = cost.flop / 2 * in_chunks(problem.head_dim) / problem.head_dim
        rounds = max(1.0, tiles / device.multiprocessors)
        moved = cost.bytes / rates.copy_bytes_per_us
        start, longest = rates.launch_us + START_US, longest_share(problem, features, tiles)
        if config.rows == "split":
            parts = min(self._rooms(problem, config), longest * tiles * device.multiprocessors)
            moved += 2 * parts * self._room_bytes(problem, config) / rates.copy_bytes_per_us
            start, longest = start + PLAN_US, min(longest, UNEVEN / tiles)
        alone = TILE_US + longest * products / rate * device.multiprocessors
        return start + max(moved, rounds * TILE_US + products / rate, alone)

    @staticmethod
    def _room_bytes(problem: BlockAttentionProblem, config: TmaAttentionConfig) -> int:
        """Bytes of a part of a long row: sums, and of each lane two references and two sums of weights."""
        return QUERIES[config.warpgroups] // 16 * 32 * (in_steps(problem.value_columns) // 8 + 1) * 16

    def _rooms(self, problem: BlockAttentionProblem, config: TmaAttentionConfig) -> int:
        """Parts of long rows at most: of tiles above 1.5 times the mean never more than four thirds of all tiles."""
        tiles = tile_count(problem, QUERIES[config.warpgroups])
        return min(MOST_ROOMS // QUERIES[config.warpgroups], ceil_div(4 * tiles, 3))

    def _split_bytes(self, problem: BlockAttentionProblem, config: TmaAttentionConfig) -> tuple[int, int]:
        """Bytes of the list of parts and the lengths of tiles, and of the parts and their counters."""
        most, warps = MOST_ROOMS // QUERIES[config.warpgroups], QUERIES[config.warpgroups] // 16
        of_parts = self._rooms(problem, config) * self._room_bytes(problem, config)
        return 16 * most + 4 * tile_count(problem, QUERIES[config.warpgroups]), 4 * most * warps + of_parts

    def _stage_keys(self, problem: BlockAttentionProblem, config: TmaAttentionConfig) -> int:
        is_half = in_chunks(problem.head_dim) > (CHUNK if config.warpgroups == "single" else WIDE)
        return STAGE_KEYS // 2 if is_half else STAGE_KEYS

    def _stages(self, problem: BlockAttentionProblem, config: TmaAttentionConfig) -> int:
        rings = 1 if config.warpgroups == "together" else 2
        row = in_chunks(problem.head_dim) // CHUNK * ROW_BYTES
        room = (SHARED_BYTES - NOTES_BYTES) // rings - 2 * QUERIES[config.warpgroups] * row
        return min(MOST_STAGES, room // (self._stage_keys(problem, config) * row))


FAMILY = TmaAttention()
