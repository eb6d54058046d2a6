"""SpMM on tensor cores for matrices whose rows share columns: such rows become dense tiles, wherever they stand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import TENSOR_CORES, capable, shared_memory_fits, tiles_in_grid
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.kernels.layouts.tile_groups import SIDE, TILE
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.group_tiles import group_tiles
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

# Fitted to 138 configs on 58 products on an H100 whose rows share nothing, within 17 %: multiples of the L2's time for
# rows of B and of the memory's for all, and microseconds of a step to the next tile.
START_US = 5.3
LOADS, MOVED = 0.46, 1.63
STEP_US = 0.454

# The same where rows share columns and tiles are known: 135 times of 5 products on an H200 within 8 %
# (explore_shared_rows.json.xz). The loads of other warps hide a step's latency there, so that the longer one counts.
SHARED_START_US = 2.13
SHARED_LOADS, SHARED_MOVED = 0.703, 1.164
SHARED_STEP_US = 0.668

# Where rows of B begin at no whole chunk, elements come one by one and none ahead: cycles of a multiprocessor for each,
# and microseconds of a turn of a warp to load 16 columns of a tile. 11 times of 6 products on an H200, within 12 %.
CHUNK = 8  # elements of 16 bytes
ELEMENT_CYCLES = 0.26
TURN_COLUMNS, TURN_US = 16, 0.45


@dataclass(frozen=True, eq=False, repr=False)
class GroupSpmmConfig(Config):
    """One point of the tuning space of `GroupSpmm`."""

    tile_n: int = tunable(64, (16, 32, 64, 128), "columns of C of a warp")
    warps: int = tunable(4, (2, 4, 8, 16), "warps of a block, each with a group of 16 rows")
    stages: int = tunable(4, (2, 3, 4, 6), "pipeline stages: tiles of B in a warp's shared memory")


class GroupSpmm(Family[SpmmProblem, GroupSpmmConfig]):
    """A warp multiplies 16 rows of A that share columns, tile by tile.

    Rows are grouped by their sets of columns, as the layers of sparse networks are, and a group's tiles hold the
    columns that any of its rows has. Where 16 rows share all of theirs, no zero is stored or multiplied. Rows of B that
    a tile needs come by asynchronous copies, some tiles ahead.
    """

    name = "group_spmm"
    summary = "Rows that share columns as dense tiles on tensor cores"
    source = "grouping by hashes of column sets and tiles for tensor cores are sparsegen's own"
    size_names = ("n", "groups")
    packed_names = ("rows", "first", "columns", "values")
    multiplies_zeros = True

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield Constraint(
            problem.dtype is not DType.FLOAT32, f"elements ({problem.dtype}) are float16 or bfloat16"
        )
        yield Constraint(problem.layout is Layout.ROW, f"B and C ({problem.layout}-major) are row-major")
        yield one_batch_element(problem)

    def constraints(
        self, problem: SpmmProblem, config: GroupSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield capable(device, TENSOR_CORES)
        yield shared_memory_fits("stages of all warps", self._shared_bytes(config), device)
        yield tiles_in_grid("n / tile_n", problem.n, config.tile_n)

    @staticmethod
    def _shared_bytes(config: GroupSpmmConfig) -> int:
        return config.warps * config.stages * SIDE * 2 * config.tile_n

    def is_worth_trying(self, problem: SpmmProblem, config: GroupSpmmConfig, device: Device) -> bool:
        """True unless a tile is twice as wide as the result or wider: such tiles are mostly padding."""
        return config.tile_n < 2 * max(SIDE, problem.n)

    def constants(self, problem: SpmmProblem, config: GroupSpmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "aligned_rows": problem.n % CHUNK == 0,
            "even_columns": problem.n % 2 == 0,
        }

    def pack(self, problem: SpmmProblem, config: GroupSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        tiles = group_tiles(matrix)
        source = empty_as_padding(tiles.source)
        return Packed(
            arrays={
                "rows": empty_as_one(tiles.rows.ravel()),
                "first": tiles.first,
                "columns": empty_as_one(tiles.columns.ravel()),
                "values": stored_values(matrix, source, problem.dtype),
            },
            sizes={"groups": len(tiles.rows)},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
        )

    def launch(
        self, problem: SpmmProblem, config: GroupSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(ceil_div(sizes["groups"], config.warps), ceil_div(problem.n, config.tile_n), 1),
            block=(WARP * config.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(config),
        )

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: GroupSpmmConfig
    ) -> Mapping[str, int]:
        return {"groups": ceil_div(problem.m, SIDE)}

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: GroupSpmmConfig, device: Device
    ) -> float:
        """Microseconds; where rows are not known to share columns, as if they shared those of their blocks alone."""
        c, rates = config, device.expected_rates
        steps, width = self._steps(problem, features), round_up(problem.n, c.tile_n)
        tiles = ceil_div(problem.m, SIDE) * steps
        products = tiles * TILE * width / rates.tensor_products_per_us(problem.dtype)
        loads_us = tiles * SIDE * width * problem.dtype.itemsize / device.l2_bytes_per_us
        memory_us = problem.cost(features.nnz).bytes / rates.copy_bytes_per_us
        alone_us = 0.0
        if problem.n % CHUNK:
            cycles = tiles * SIDE * width / device.multiprocessors * ELEMENT_CYCLES
            alone_us = math.hypot(cycles / rates.clock_mhz, steps * c.tile_n / TURN_COLUMNS * TURN_US)
        if features.shared_fill:
            in_tiles = max(products, SHARED_LOADS * loads_us, SHARED_STEP_US * steps, alone_us)
            return rates.launch_us + SHARED_START_US + in_tiles + SHARED_MOVED * memory_us
        in_tiles = max(products, LOADS * loads_us) + max(STEP_US * steps, alone_us)
        return rates.launch_us + START_US + in_tiles + MOVED * memory_us

    @staticmethod
    def _steps(problem: SpmmProblem, features: Features) -> int:
        """Tiles of a group of rows, as far as these are known to share columns."""
        if features.shared_fill:
            return max(
                1, ceil_div(features.nnz, round(ceil_div(problem.m, SIDE) * TILE * features.shared_fill))
            )
        # A group has at most the columns of its 16 by 16 blocks with nonzeros.
        in_blocks = features.row_mean / features.block_fill if features.block_fill else 0.0
        columns = min(problem.k, SIDE * features.row_mean, in_blocks)
        shared = problem.k * any_live(min(1.0, features.density), SIDE)
        return math.ceil(min(columns, shared) / SIDE)

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> GroupSpmmConfig:
        """The narrowest tile that takes all columns, up to 64."""
        return GroupSpmmConfig(tile_n=next((t for t in (16, 32) if problem.n <= t), 64))


FAMILY = GroupSpmm()
