"""SpMM for blocked patterns on Hopper's tensor cores: every tile of A that has a nonzero is stored as a dense tile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import (
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
    warpgroups_capable,
)
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.spmm.block_tiles import BLOCK_NAMES, CHUNK, TILE_K, packed_blocks, whole_chunks
from sparsegen.kernels.spmm.tensor_tiles import held_share, whole_tiles_requirement
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

ITEM_BYTES = 2
BARRIER_BYTES = 8
# Fitted to 1,070 configs on 92 products on an H100, which these describe within 7 %: factors on the time of the tensor
# cores, of the L2 for tiles of A and B, and of the memory for A and for B and C; microseconds of a tile of C's prologue
# and epilogue, and of what a step waits for a load, of which there is one fewer on its way than stages.
START_US = 0.75
PRODUCTS, LOADS_OF_TILES, LOADS_OF_A, LOADS_OF_B = 0.930, 0.285, 0.459, 0.627
TILE_US, LOAD_US = 1.21, 0.485
LOAD_WARPS = 4  # of a thread block; two gain .6 % at most where this family is the fastest


@dataclass(frozen=True, eq=False, repr=False)
class BlockSpmmConfig(Config):
    """One point of the tuning space of `BlockSpmm`."""

    tile_m: int = tunable(128, (64, 128, 256), "rows of a tile of A, and of C per thread block", packs=True)
    tile_n: int = tunable(256, (64, 128, 256), "columns of C per thread block")
    stages: int = tunable(4, (3, 4, 5, 6), "pipeline stages: tiles of A and B in shared memory")
    cluster: int = tunable(2, (1, 2), "thread blocks that share the loads of A's tiles (multicast)")
    resident_blocks: int = tunable(1, (1, 2), "occupancy: thread blocks that must fit on a multiprocessor")


LARGE_TILE_CONFIGS = (
    BlockSpmmConfig(tile_m=128, tile_n=256, stages=4),
    BlockSpmmConfig(tile_m=128, tile_n=128, stages=5),
)
# Candidates: the one that should be fastest is taken; all others come near one of these.
LIKELY_CONFIGS = (
    *LARGE_TILE_CONFIGS,
    BlockSpmmConfig(tile_m=64, tile_n=256, stages=4),
    BlockSpmmConfig(tile_m=128, tile_n=64, stages=6),
    BlockSpmmConfig(tile_m=64, tile_n=128, stages=6),
    BlockSpmmConfig(tile_m=64, tile_n=128, stages=4, resident_blocks=2),
    BlockSpmmConfig(tile_m=64, tile_n=64, stages=6, resident_blocks=2),
    BlockSpmmConfig(tile_m=64, tile_n=64, stages=6, cluster=1),
)


class BlockSpmm(Family[SpmmProblem, BlockSpmmConfig]):
    """A persistent kernel: producer warps load tiles of A and B, consumer warps compute one tile of C after the other.

    The kernel skips tiles without nonzeros. In all other tiles it multiplies zeros too, so that an infinity or NaN in B
    makes NaN even in rows that have no nonzero there.
    """

    name = "block_spmm"
    summary = (
        "SpMM of dense blocks on warpgroups' tensor cores: A's tiles that have nonzeros are stored whole"
    )
    source = (
        "warps that load beside warps that multiply, and copies for a whole cluster: NVIDIA, Hopper tuning guide; rows "
        "of most blocks first: Gale et al., SC 2020, section V-C (row swizzle); the format is block CSR"
    )
    size_names = ("m", "k", "n", "row_block_count")
    packed_names = BLOCK_NAMES
    multiplies_zeros = True

    def batch_size_names(self, problem: SpmmProblem) -> tuple[str, ...]:
        return ("stored",) if problem.value_sets > 1 else ()

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)
        yield Constraint(problem.dtype is not DType.FLOAT32, "warpgroups multiply 16-bit elements")
        yield whole_chunks(problem)

    def constraints(
        self, problem: SpmmProblem, config: BlockSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, threads = config, self._threads(config)
        yield warpgroups_capable(device)
        yield enough_registers(c.tile_n // 2 + 40, threads * c.resident_blocks, at_a_time=8)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("tiles", shared, device)
        yield resident_blocks_fit(c.resident_blocks, shared, device)

    def requirements(
        self, problem: SpmmProblem, features: Features, config: BlockSpmmConfig
    ) -> Iterator[Constraint]:
        yield whole_tiles_requirement(features)

    def is_worth_trying(self, problem: SpmmProblem, config: BlockSpmmConfig, device: Device) -> bool:
        """True unless a tile is twice as large as the result, or blocks of a cluster have no columns. It rests on
        arithmetic: such tiles are mostly padding.
        """
        c = config
        if c.tile_n >= 2 * max(CHUNK, problem.n) or c.tile_m >= 2 * max(16, problem.m):
            return False
        return c.cluster == 1 or _has_columns(problem, c)

    def constants(self, problem: SpmmProblem, config: BlockSpmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "divides_k": problem.k % TILE_K == 0,
            "divides_n": problem.n % (config.cluster * config.tile_n) == 0,
            "vector_b": 16 // problem.dtype.itemsize,
            "pass_columns": _pass_columns(config),
            **batch_constants(problem),
        }

    def pack(self, problem: SpmmProblem, config: BlockSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        return packed_blocks(problem, config.tile_m, TILE_K, matrix)

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: BlockSpmmConfig
    ) -> Mapping[str, int]:
        return {"row_block_count": ceil_div(problem.m, config.tile_m)}

    def launch(
        self, problem: SpmmProblem, config: BlockSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        work = sizes["row_block_count"] * ceil_div(problem.n, c.tile_n * c.cluster)
        clusters = min(work, max(1, c.resident_blocks * device.multiprocessors // c.cluster))
        return Launch(
            grid=(clusters * c.cluster, 1, problem.batch),
            block=(self._threads(c), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, c),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: BlockSpmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        panels, held = ceil_div(problem.k, TILE_K), held_share(features, c.tile_m, TILE_K)
        columns = c.tile_n * c.cluster
        tiles = problem.batch * ceil_div(problem.m, c.tile_m) * ceil_div(problem.n, columns) * c.cluster
        each = ceil_div(tiles, device.multiprocessors)
        rounds = ceil_div(tiles, c.resident_blocks * device.multiprocessors)
        # Tiles of the block of rows that has most tiles with a nonzero: it is computed first, beside several others.
        fullest = panels * max(held, features.row_max / max(1, problem.k))
        steps = device.multiprocessors * max(each * panels * held, fullest)
        products = steps * c.tile_m * c.tile_n * TILE_K / rates.tensor_products_per_us(problem.dtype)
        loaded = steps * (c.tile_m / c.cluster + c.tile_n) * TILE_K * ITEM_BYTES / device.l2_bytes_per_us
        waited = LOAD_US / (c.stages - 1) * max(rounds * panels * held, fullest)
        of_a = LOADS_OF_A * held * problem.m * problem.k * ITEM_BYTES
        of_b = LOADS_OF_B * problem.batch * (problem.m + problem.k) * problem.n * ITEM_BYTES
        return (
            rates.launch_us
            + START_US
            + max(PRODUCTS * products, LOADS_OF_TILES * loaded + waited)
            + TILE_US * rounds
            + (of_a + of_b) / rates.copy_bytes_per_us
        )

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> BlockSpmmConfig:
        """The config that should be fastest; the narrowest tiles where there are too few columns for a cluster."""
        likely = [c for c in LIKELY_CONFIGS if _has_columns(problem, c)] or LIKELY_CONFIGS[-1:]
        return self.fastest(problem, features, likely, device)

    def alternatives(
        self, problem: SpmmProblem, features: Features, device: Device
    ) -> tuple[BlockSpmmConfig, ...]:
        """The configs with larger tiles: features do not tell how large the pattern's blocks are."""
        return tuple(config for config in LARGE_TILE_CONFIGS if _has_columns(problem, config))

    @staticmethod
    def _threads(config: BlockSpmmConfig) -> int:
        return WARP * (config.tile_m // 16 + LOAD_WARPS)

    @staticmethod
    def _shared_bytes(problem: SpmmProblem, config: BlockSpmmConfig) -> int:
        """The bytes of the tiles, the epilogue's staging buffers and the barriers."""
        c = config
        stage = (c.tile_m + c.tile_n) * TILE_K * ITEM_BYTES + 2 * BARRIER_BYTES
        columns = _pass_columns(c)
        laid_down = 16 * (columns + CHUNK) if problem.layout is Layout.ROW else columns * (16 + CHUNK)
        return c.stages * stage + c.tile_m // 16 * laid_down * ITEM_BYTES


def _has_columns(problem: SpmmProblem, config: BlockSpmmConfig) -> bool:
    """True if every thread block of a cluster has columns to compute."""
    return config.cluster * config.tile_n <= problem.n


def _pass_columns(config: BlockSpmmConfig) -> int:
    """The columns of C that a warp stages at a time in the epilogue; half as many if there are many warps."""
    return 64 if config.tile_m <= 128 else 32


FAMILY = BlockSpmm()
