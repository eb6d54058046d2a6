"""``block_attention_backward`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.attention.block_attention import (
    ALIGNED,
    CHUNK,
    ROW_BYTES,
    THREADS,
    WIDEST,
    BlockAttentionFamily,
    device_constraints,
    in_chunks,
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
    uneven_rounds,
    whole_pieces,
)
from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import BlockAttentionBackwardProblem, TokenOrder
from sparsegen.system.integers import ceil_div, round_up

# Columns up to which heads are narrow; keys or queries of a tile of one warpgroup.
NARROW, SMALL_TILE = 128, 64
NARROWER_VALUES = (192, 128)  # columns of Q and K, and of V, in whole chunks, where they differ
STEPS_AHEAD = {64: 4, 128: 3, 192: 3, 256: 2}  # pairs of stages, by the columns of a row
NOTES_BYTES = 128  # of a ring: barriers, and what the producer says of a tile
PAIR_NOTES_BYTES = 576  # of a pair of stages: barriers, values of rows, and what the producer says of them
REACHED = {(1, 64): 0.63, (1, 128): 0.82, (2, 64): 0.58, (2, 128): 0.91}  # fraction of the tensor cores' rate
# Shares of that rate, in tiles of one warpgroup.
OF_SINGLE = {(1, 64): 0.78, (1, 128): 0.61, (2, 64): 1.0, (2, 128): 0.81}
PRODUCTS = {1: 5, 2: 7}  # products for each live place
WIDE_PRODUCTS = 11  # where both warpgroups compute the scores of the same rows
START_US, TILE_US = 10.0, 3.0
ROUNDED_US = 5.0  # until sums of one pass are clear, and rounded at the end
# Microseconds of a step whose multiprocessor has no other tile, by passes and columns; the parts that a step takes in a
# tile of one warpgroup, and in one of queries.
STEP_US = {(1, 64): 1.6, (1, 128): 2.75, (2, 64): 1.1, (2, 128): 1.58}
ALONE, OF_QUERIES = 0.88, 0.75
SHORT_WINDOW = 4 * TILE  # keys of a window, of which tiles of half as many keys compute fewer dead places


@dataclass(frozen=True)
class TmaAttentionBackwardConfig(Config):
    """One point of the tuning space of `tma_attention_backward`."""

    passes: int = tunable(
        2,
        (1, 2),
        "1: dQ is added up in the L2, in any order; 2: a second pass over the queries computes it",
        packs=True,
    )
    warpgroups: str = tunable(
        "together",
        ("together", "single"),
        "whether two warpgroups share a tile of keys or queries, or each has its own of 64, and stages of its own",
        packs=True,
    )


class TmaAttentionBackward(BlockAttentionFamily[BlockAttentionBackwardProblem, TmaAttentionBackwardConfig]):
    """A persistent kernel in one launch: what tiles share is prepared, then each tile is computed by one block.

    A tile of 128 keys meets all queries that see any of them: scores and dP come with keys as rows, so that weights and
    dS are left factors of dV and dK as they lie in registers. dQ is added up in the L2, or computed by tiles of queries
    that compute the scores again. Heads of a group are added up in their tile.
    """

    name = "tma_attention_backward"
    summary = "gradients of attention over live blocks, on warpgroups' tensor cores"
    source = (
        "Dao: FlashAttention-2, section 3.1.2 (backward pass by blocks of keys); Shah et al.: FlashAttention-3 (warp "
        "specialization)"
    )
    deterministic = False
    mapped_names = ("q", "k", "v", "do", "dq", "dk", "dv")
    size_names = ("queries", "keys", "kv_heads", "group", "batch")
    scratch_names = ("counters", "row_values", "dq_sums", "tile_order", "mask_ranks")
    problem_type = BlockAttentionBackwardProblem
    config_type = TmaAttentionBackwardConfig

    def is_deterministic(
        self, problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig
    ) -> bool:
        return config.passes == 2

    def scope(self, problem: BlockAttentionBackwardProblem) -> Iterator[Constraint]:
        yield from super().scope(problem)
        yield whole_columns(problem, WIDEST)
        columns = in_chunks(problem.head_dim), in_chunks(problem.value_columns)
        yield Constraint(
            problem.value_columns % ALIGNED == 0 and (columns[0] == columns[1] or columns == NARROWER_VALUES),
            f"value_dim ({problem.value_columns}) is a multiple of {ALIGNED} that takes as many chunks of {CHUNK} "
            f"columns as head_dim ({problem.head_dim}), or {NARROWER_VALUES[1]} of {NARROWER_VALUES[0]}",
        )
        yield whole_pieces(problem)

    def constraints(
        self, problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield Constraint(
            config.passes == 2 or in_chunks(problem.head_dim) <= NARROW,
            f"sums of one pass (head_dim {problem.head_dim}) fit the registers up to {NARROW} columns",
        )
        yield Constraint(
            config.warpgroups == "together" or in_chunks(problem.head_dim) <= NARROW,
            f"two rings of stages (head_dim {problem.head_dim}) fit shared memory up to {NARROW} columns",
        )
        needed = self._shared_bytes(problem, config) if problem.head_dim <= WIDEST else 0
        yield from device_constraints(device, needed)

    def constants(
        self, problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig
    ) -> Mapping[str, Value]:
        return {
            "entry": self.entry,
            **gradient_constants(problem),
            "tile": self._tile(problem, config),
            "pairs": self._steps_ahead(problem, config),
            "stages_keys": self._stages_keys(problem, config),
        }

    def tensor_map(
        self, problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig, name: str
    ) -> TensorMap:
        of_keys = name in ("k", "v", "dk", "dv")
        heads, tokens = (problem.kv_heads, problem.keys) if of_keys else (problem.heads, problem.queries)
        columns = problem.value_columns if name in ("v", "do", "dv") else problem.head_dim
        row = columns * problem.dtype.itemsize
        by_heads = problem.order is TokenOrder.HEADS
        places, box = ((tokens, heads), (STEP, 1)) if by_heads else ((heads, tokens), (1, STEP))
        return TensorMap(
            array=name,
            dtype=problem.dtype,
            sizes=(columns, *places, problem.batch),
            strides=(row, row * places[0], row * heads * tokens),
            box=(ROW_BYTES // problem.dtype.itemsize, *box, 1),
            swizzle=Swizzle.BYTES_128,
        )

    def pack(
        self, problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        tiles = sum(self._tiles(problem, config))
        rows = problem.batch * problem.heads * round_up(problem.queries, STEP)
        scratch = gradient_scratch(problem, tiles) | {
            "dq_sums": 4 * rows * in_chunks(problem.head_dim) if config.passes == 1 else 16
        }
        return Packed(arrays={}, sizes=mask_sizes(problem), nnz=matrix.nnz, scratch=scratch)

    def launch(
        self,
        problem: BlockAttentionBackwardProblem,
        config: TmaAttentionBackwardConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        blocks = max(1, min(sum(self._tiles(problem, config)), device.multiprocessors))
        return Launch((blocks, 1, 1), (THREADS, 1, 1), self._shared_bytes(problem, config), together=True)

    def heuristic(
        self, problem: BlockAttentionBackwardProblem, features: Features, device: Device
    ) -> TmaAttentionBackwardConfig:
        """The form that should be faster; of two passes where equal bits are wanted, dispatch takes an alternative."""
        return self._forms(problem, features, device)[0]

    def alternatives(
        self, problem: BlockAttentionBackwardProblem, features: Features, device: Device
    ) -> tuple[TmaAttentionBackwardConfig, ...]:
        """The other forms."""
        return tuple(self._forms(problem, features, device)[1:])

    def _forms(
        self, problem: BlockAttentionBackwardProblem, features: Features, device: Device
    ) -> list[TmaAttentionBackwardConfig]:
        """One pass and two, as far as sums fit registers and tiles shared memory; for blocks of fewer keys than a tile
        has, for short windows, and where there are few tiles, those of one warpgroup too: the fastest one first.
        """
        is_narrow = in_chunks(problem.head_dim) <= NARROW
        has_small = problem.has_mask and problem.block.columns < TILE
        are_few = self._tiles(problem, self.config_type())[0] <= device.multiprocessors
        is_small = is_narrow and (has_small or are_few or 0 < problem.span.window <= SHORT_WINDOW)
        forms = [
            self.config_type(passes=passes, warpgroups=warpgroups)
            for warpgroups in (("together", "single") if is_small else ("together",))
            for passes in PRODUCTS
            if passes == 2 or is_narrow
        ]
        valid = [form for form in forms if self.is_valid(problem, form, device)]
        return self.by_time(problem, features, valid or forms, device)

    def analytic_us(
        self,
        problem: BlockAttentionBackwardProblem,
        features: Features,
        config: TmaAttentionBackwardConfig,
        device: Device,
    ) -> float:
        """Microseconds of all products at their rate, or of the longest tile's steps, one behind the other."""
        rates, passes = device.expected_rates, config.passes
        cost, tiles = problem.cost(0), sum(self._tiles(problem, config))
        columns = in_chunks(problem.head_dim)
        reached, tile = REACHED[passes, min(columns, NARROW)], self._tile(problem, config)
        if config.warpgroups == "single":
            reached *= OF_SINGLE[passes, columns]
        rate = reached * rates.tensor_products_per_us(problem.dtype)
        computed = PRODUCTS[passes] if columns <= NARROW else WIDE_PRODUCTS
        products = cost.flop / 2 / PRODUCTS[1] * computed * columns / problem.head_dim
        products *= computed_places(problem, tile)
        rounds, longest = tiles / device.multiprocessors, longest_tiles(problem, tile)
        rings = 2 if config.warpgroups == "single" else 1
        spread_us = products / rate * uneven_rounds(rounds, longest.least)
        steps = max(longest.of_keys, OF_QUERIES * longest.of_queries if passes == 2 else 0.0)
        steps_us = steps * STEP_US[passes, min(columns, NARROW)] * (ALONE if rings == 2 else 1.0)
        start_us = rates.launch_us + START_US + (ROUNDED_US if passes == 1 else 0.0)
        sums = 4 * problem.batch * problem.heads * problem.queries * columns if passes == 1 else 0
        moved = (cost.bytes + 2 * sums) / rates.copy_bytes_per_us
        return start_us + moved + max(1.0, rounds / rings) * TILE_US + max(spread_us, steps_us)

    @staticmethod
    def _tiles(problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig) -> tuple[int, int]:
        """Tiles of keys, and of queries."""
        tile = TmaAttentionBackward._tile(problem, config)
        of_keys = problem.batch * problem.kv_heads * ceil_div(problem.keys, tile)
        of_queries = problem.batch * problem.heads * ceil_div(problem.queries, tile)
        return of_keys, of_queries if config.passes == 2 else 0

    @staticmethod
    def _tile(problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig) -> int:
        """Keys or queries of a tile; of wide heads warpgroups share 64, and halve the gradients' columns."""
        return (
            TILE if in_chunks(problem.head_dim) <= NARROW and config.warpgroups == "together" else SMALL_TILE
        )

    @staticmethod
    def _steps_ahead(problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig) -> int:
        """Pairs of stages of a ring; two rings of 128 columns have room for two each."""
        columns = in_chunks(problem.head_dim)
        ahead = STEPS_AHEAD[columns]
        return min(ahead, 2) if config.warpgroups == "single" and columns > CHUNK else ahead

    @staticmethod
    def _stages_keys(problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig) -> bool:
        """True if dK has a place of its own in shared memory, so that the next tile's K is loaded meanwhile."""
        return config.passes == 1 and (
            config.warpgroups == "together" or in_chunks(problem.head_dim) <= CHUNK
        )

    @staticmethod
    def _shared_bytes(problem: BlockAttentionBackwardProblem, config: TmaAttentionBackwardConfig) -> int:
        ahead, row = (
            TmaAttentionBackward._steps_ahead(problem, config),
            in_chunks(problem.head_dim) * problem.dtype.itemsize,
        )
        tile, rings = TmaAttentionBackward._tile(problem, config), 2 if config.warpgroups == "single" else 1
        held, stages = 2 * tile * row, 2 * ahead * STEP * row
        gradients = 2 * tile * TILE if config.passes == 1 else 0
        staged = tile * row if TmaAttentionBackward._stages_keys(problem, config) else 0
        notes = NOTES_BYTES + ahead * PAIR_NOTES_BYTES
        return rings * (held + stages + gradients + staged + notes)


FAMILY = TmaAttentionBackward()
