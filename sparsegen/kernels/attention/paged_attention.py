"""``paged_attention`` on tensor cores of single warps, with the keys of all sequences dealt evenly to thread blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device, Family
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
from sparsegen.operators import Chosen, DType, PagedAttentionProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

WIDEST = 256  # head_dim
MOST_QUERIES = 16
ROWS = 16  # of an instruction
MOST_MULTIPROCESSORS = 160  # whose blocks have room for their parts
STATISTICS_BYTES = 8  # of a row
IN_FLIGHT = 40 << 10  # bytes on their way to a multiprocessor that hide the memory's latency
START_US = 12.0  # beside the launch, whatever is read (H200): first tiles, and merging the last ones
PRODUCTS = 0.3  # fraction of the tensor cores' rate


@dataclass(frozen=True)
class PagedAttentionConfig(Config):
    """One point of the tuning space of `paged_attention`."""

    tile: int = tunable(32, (16, 32, 64), "keys of a step of a team of warps")
    stages: int = tunable(
        3, (2, 3, 4, 6, 8), "pipeline stages: tiles of K and V that a team has in shared memory"
    )
    teams: int = tunable(4, (1, 2, 4, 8), "teams of warps of a block, each with keys of its own")
    row_tiles: int = tunable(1, (1, 2), "queries of a warp, in instructions of 16")
    resident_blocks: int = tunable(1, (1, 2, 3), "occupancy: thread blocks of a multiprocessor", packs=True)


class PagedAttention(Family[PagedAttentionProblem, PagedAttentionConfig]):
    """A persistent kernel: tiles of keys of all sequences and heads stand in one row that blocks share equally.

    All queries of a key head are rows of the products, so that keys are loaded once. A block's teams put their sums
    together in shared memory; where several blocks share a head, the last one to end adds up what the others found, in
    the order of the keys.
    """

    name = "paged_attention"
    summary = "attention of few queries over chosen pages, split evenly over blocks and merged"
    source = (
        "Dao, Haziza, Massa, Sizov: Flash-Decoding, 2023; Osama et al.: Stream-K, 2023; Kwon et al.: PagedAttention, "
        "2023; Milakov and Gimelshein: Online normalizer calculation for softmax, 2018"
    )
    size_names = ("slots", "capacity", "kv_heads", "sequences")
    packed_names = ()
    scratch_names = ("counters", "parts")

    def scope(self, problem: PagedAttentionProblem) -> Iterator[Constraint]:
        yield Constraint(problem.dtype is not DType.FLOAT32, f"elements ({problem.dtype}) have 16 bits")
        yield Constraint(
            problem.head_dim % 16 == 0 and problem.head_dim <= WIDEST,
            f"head_dim ({problem.head_dim}) is a multiple of 16 up to {WIDEST}",
        )
        yield Constraint(
            problem.queries <= MOST_QUERIES, f"queries ({problem.queries}) are at most {MOST_QUERIES}"
        )
        rows = problem.queries * problem.group
        most = 256 if problem.head_dim <= 128 else 128
        yield Constraint(
            rows <= most,
            f"queries · group ({rows}), which share keys, are at most {most} with head_dim {problem.head_dim}",
        )

    def constraints(
        self, problem: PagedAttentionProblem, config: PagedAttentionConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield capable(device, TENSOR_CORES)
        threads = _threads(problem, config)
        yield Constraint(threads <= 512, f"a block's threads ({threads}) are at most 512")
        width, tiles = problem.head_dim, config.row_tiles
        needed = tiles * (width // 2 + width // 4 + config.tile // 2 + 4) + 34
        yield enough_registers(needed, threads * config.resident_blocks, at_a_time=8)
        yield Constraint(
            config.teams == 1 or _sums_bytes(problem) <= _stage_bytes(problem, config),
            f"sums of the queries ({_sums_bytes(problem)} bytes) take the place of a tile "
            f"({_stage_bytes(problem, config)}), or teams = 1",
        )
        shared = _shared_bytes(problem, config)
        yield shared_memory_fits("stages", shared, device)
        yield resident_blocks_fit(config.resident_blocks, shared, device)

    def is_worth_trying(
        self, problem: PagedAttentionProblem, config: PagedAttentionConfig, device: Device
    ) -> bool:
        """True if enough bytes are on their way to hide the memory's latency (Little's law), and a warp has no more
        rows than there are.
        """
        ahead = config.teams * (config.stages - 1) * _stage_bytes(problem, config)
        return config.resident_blocks * ahead >= IN_FLIGHT and config.row_tiles <= _row_blocks(problem)

    def constants(self, problem: PagedAttentionProblem, config: PagedAttentionConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "queries": problem.queries,
            "group": problem.group,
            "head_dim": problem.head_dim,
            "page": problem.page.count,
            "is_listed": problem.chosen is Chosen.LISTED,
            "order": problem.order.value,
        }

    def pack(
        self, problem: PagedAttentionProblem, config: PagedAttentionConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        rows = _row_blocks(problem) * ROWS
        part = _sums_bytes(problem) + rows * STATISTICS_BYTES
        blocks = MOST_MULTIPROCESSORS * config.resident_blocks
        return Packed(
            arrays={},
            sizes={"slots": problem.slots, "capacity": problem.list_places, "sequences": problem.batch},
            nnz=matrix.nnz,
            scratch={"counters": 4 * problem.batch * problem.kv_heads, "parts": 2 * blocks * part},
        )

    def launch(
        self,
        problem: PagedAttentionProblem,
        config: PagedAttentionConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        tiles = problem.batch * problem.kv_heads * ceil_div(problem.slots * problem.page.count, config.tile)
        blocks = config.resident_blocks * min(device.multiprocessors, MOST_MULTIPROCESSORS)
        return Launch(
            grid=(min(tiles, blocks), 1, 1),
            block=(_threads(problem, config), 1, 1),
            shared_memory_bytes=_shared_bytes(problem, config),
        )

    def heuristic(
        self, problem: PagedAttentionProblem, features: Features, device: Device
    ) -> PagedAttentionConfig:
        """The most teams of a block for each multiprocessor, then the most stages, of short tiles; a team alone, whose
        steps nothing hides, has longer ones.
        """
        for row_tiles in (1, 2):
            for teams in (8, 4, 2, 1):
                for tile in (16, 32, 64) if teams > 1 else (32, 16, 64):
                    for stages in (4, 3, 2):
                        config = self.config_type(tile=tile, stages=stages, teams=teams, row_tiles=row_tiles)
                        if self.is_valid(problem, config, device):
                            return config
        return self.config_type()

    def analytic_us(
        self, problem: PagedAttentionProblem, features: Features, config: PagedAttentionConfig, device: Device
    ) -> float:
        rates, cost = device.expected_rates, problem.cost(0)
        padded = _row_blocks(problem) * ROWS / (problem.queries * problem.group)
        products = padded * cost.flop / 2 / (PRODUCTS * rates.tensor_products_per_us(problem.dtype))
        return rates.launch_us + START_US + max(cost.bytes / rates.copy_bytes_per_us, products)


def _row_blocks(problem: PagedAttentionProblem) -> int:
    """Rows of the products, in instructions."""
    return ceil_div(problem.queries * problem.group, ROWS)


def _threads(problem: PagedAttentionProblem, config: PagedAttentionConfig) -> int:
    return WARP * config.teams * ceil_div(_row_blocks(problem), config.row_tiles)


def _sums_bytes(problem: PagedAttentionProblem) -> int:
    """Sums of all rows, as lanes hold them: of 8 rows or fewer half of an instruction's."""
    rows = 8 if problem.queries * problem.group <= 8 else _row_blocks(problem) * ROWS
    return rows * problem.head_dim * 4


def _row_bytes(problem: PagedAttentionProblem) -> int:
    """A row of K or V in shared memory, of whole blocks of up to 128 bytes."""
    padded = 1 << (problem.head_dim - 1).bit_length()
    block = min(128, 2 * padded)
    return ceil_div(2 * problem.head_dim, block) * block


def _stage_bytes(problem: PagedAttentionProblem, config: PagedAttentionConfig) -> int:
    return 2 * config.tile * _row_bytes(problem)


def _shared_bytes(problem: PagedAttentionProblem, config: PagedAttentionConfig) -> int:
    """The ring of each team, and the state of a block behind them."""
    stages = config.teams * config.stages
    spans = max(1, config.tile // problem.page.count)
    of_teams = config.teams * _row_blocks(problem) * ROWS * STATISTICS_BYTES
    state = of_teams + 4 * (config.teams + stages * spans + _threads(problem, config) // WARP) + 32
    return stages * _stage_bytes(problem, config) + state


FAMILY = PagedAttention()
