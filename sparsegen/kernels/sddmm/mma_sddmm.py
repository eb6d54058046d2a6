"""SDDMM on tensor cores: tiles of the product are computed whole, of the columns that a panel of rows uses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants
from sparsegen.kernels.layouts.limits import (
    CLUSTERS,
    capable,
    enough_registers,
    resident_blocks,
    resident_blocks_fit,
    resident_clusters,
    shared_memory_fits,
    warpgroups_capable,
)
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, threads_of
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.sddmm.panels import Panels, expected_tiles
from sparsegen.kernels.sddmm.sampled import VALUES, SampledProduct
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.operators import DType, SddmmEpilogue, SddmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

PITCH_PADDING = 8  # floats of a row of results in shared memory
PARTIAL_SUMS = 20  # registers for each of several rows of instructions
# Fractions of the tensor cores' rate, and a multiprocessor's cycles for each place of a tile, whatever k.
PRODUCTS = {DType.FLOAT32: 0.43, DType.FLOAT16: 0.6, DType.BFLOAT16: 0.6}
# Of float32 by warpgroups: the fraction of that rate, and cycles of a step in which products do not run.
WARPGROUP_PRODUCTS, WARPGROUP_STEP_CYCLES = 1.0, 1050.0
PLACE_CYCLES = 0.033
LOADS = 0.8  # of the time that L2 takes for rows
START_US = 0.84
MOVES = 1.36  # multiple of the memory's time for the least traffic
# Cycles that a block waits: for its lists and first rows, and for a step along k, over the steps on their way.
BLOCK_CYCLES, STEP_CYCLES = 2200.0, 320.0
# And in each thread: for a nonzero, for the value that scales it, and for an element of a row that is not aligned.
NONZERO_CYCLES, SCALE_CYCLES, UNALIGNED_CYCLES = 97.0, 310.0, 71.0
CLUSTER_CYCLES, REMOTE_CYCLES = 5500.0, 20.0  # until a cluster's blocks meet, and for another block's result
USUAL_REGISTERS = 128  # of a thread, unless more blocks are to be resident


@dataclass(frozen=True)
class MmaSddmmConfig(Config):
    """One point of the tuning space of `MmaSddmm`."""

    tile_m: int = tunable(64, (16, 32, 64, 128), "rows of a tile: a panel", packs=True)
    tile_n: int = tunable(
        128, (32, 64, 128, 256), "columns of a tile, of those that have a nonzero in its panel", packs=True
    )
    tile_k: int = tunable(32, (16, 32, 64), "elements of the rows of A and B per pipeline stage")
    warps_m: int = tunable(2, (1, 2, 4, 8), "warps over a tile's rows")
    warps_n: int = tunable(2, (1, 2, 4, 8), "warps over its columns")
    stages: int = tunable(
        3, (2, 3, 4), "pipeline stages: parts of k in shared memory; the next ones load while one is used"
    )
    step: int = tunable(4, (2, 4, 8), "nonzeros of which a thread loads the places together", packs=True)
    resident_blocks: int = tunable(
        1,
        (1, 2, 3),
        "occupancy: blocks whose registers must fit on a multiprocessor; more leave a thread fewer",
    )
    row_order: str = tunable(
        "natural",
        ("natural", "by_column"),
        "rows as they are, or sorted by the column in their middle, so that a panel's rows share columns",
        packs=True,
    )
    warpgroups: bool = tunable(
        False,
        (False, True),
        "float32 by instructions of warpgroups (wgmma): 64 rows, B from shared memory",
    )
    splits: int = tunable(
        1, (1, 2, 4, 8), "parts of k (split-k), one for each block of a cluster, which adds them up"
    )


# The heuristic chooses one of these: parts of 64 by 64 results or fewer for each warp.
SHAPES = tuple(
    MmaSddmmConfig(tile_m=tile_m, tile_n=tile_n, warps_m=warps_m, warps_n=warps_n)
    for tile_m, tile_n, warps_m, warps_n in (
        (128, 128, 2, 4),
        (64, 128, 2, 2),
        (64, 64, 4, 2),
        (64, 64, 2, 2),
        (32, 128, 1, 4),
        (32, 64, 1, 4),
        (32, 32, 2, 1),
        (16, 128, 1, 4),
        (16, 64, 1, 2),
    )
)
# Of float32 where there are warpgroups also one of these.
WARPGROUP_SHAPES = tuple(
    MmaSddmmConfig(tile_m=tile_m, tile_n=tile_n, warps_m=tile_m // 16, warps_n=1, warpgroups=True)
    for tile_m, tile_n in ((128, 128), (64, 128), (64, 64))
)


class MmaSddmm(SampledProduct[MmaSddmmConfig]):
    """Blocks compute tiles of A · Bᵀ with mma.sync, from rows gathered by lists, and keep what the pattern has.

    A tile has ``tile_m`` rows and ``tile_n`` of the columns that have a nonzero among them, so that even a pattern
    without any order fills one place of ``tile_m``, but for the last tile of a panel. Each tile loads its rows of A
    and B from L2, (tile_m + tile_n) · k elements for tile_m · tile_n · k products; the pattern costs 2 bytes for each
    nonzero and 4 for each of a tile's rows and columns. float32 is split into two TF32 numbers, and three of the four
    products are added up, so that about 21 of its 24 bits count.

    Predicted for an H100 from 130 million products of 16 bits in a microsecond and 5 TB/s from L2, before any was
    measured: 140 µs for 4096 × 4096 at 90 % sparsity with k = 1024 (every panel uses every column: 17 · 10⁹ products),
    and 15 µs for a causal band of 256 in 12288² with k = 128 (three tiles of 128 × 128 to a panel, 0.6 · 10⁹ products,
    19 MB through L2, 13 MB of lists and results; the launch and two waves of blocks take the rest).
    """

    name = "mma_sddmm"
    summary = "SDDMM on tensor cores: tiles of the columns that a panel of rows uses, kept at the nonzeros"
    source = (
        "columns with a nonzero in a panel put side by side: sparse graph translation of Wang et al., TC-GNN, USENIX "
        "ATC 2023; float32 from three TF32 products: Ootomo and Yokota, IJHPCA 2022"
    )
    size_names = ("k",)
    packed_names = ("tiles", "rows", "columns", "shifts", "places", VALUES)

    def constraints(
        self, problem: SddmmProblem, config: MmaSddmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, itemsize = config, problem.dtype.itemsize
        yield from on_tensor_cores(c, device, "rows", "columns")
        if c.splits > 1:
            yield capable(device, CLUSTERS)
        if c.warpgroups:
            yield from self._warpgroup_constraints(problem, c, device)
        row_bytes = c.tile_k * itemsize
        yield Constraint(
            row_bytes == 128 or (row_bytes == 64 and not c.warpgroups),
            f"tile_k ({c.tile_k}) elements of a row take {'' if c.warpgroups else '64 or '}128 bytes ({row_bytes})",
        )
        yield Constraint(
            problem.k + c.stages * c.tile_k <= MAX_INDEX,
            f"k ({problem.k}) and the stages behind it ({c.stages * c.tile_k}) stay within 32 bits",
        )
        threads = threads_of(c)
        yield Constraint(threads <= 1024, f"a block has {threads} threads, at most 1024")
        # Sums, fragments of the operands, row numbers, about 40 for addresses, and what nvcc was seen to need beside
        # them for the partial sums of float32.
        rows, columns = c.tile_m // (16 * c.warps_m), c.tile_n // (8 * c.warps_n)
        operands = (2 if problem.dtype is DType.FLOAT32 else 1) * (4 + 2 * columns)
        chunks = c.tile_k * itemsize // 16
        listed = ceil_div(c.tile_m * chunks, threads) - (-c.tile_n * chunks // threads)
        partial = PARTIAL_SUMS * rows if problem.dtype is DType.FLOAT32 and rows > 1 else 0
        if c.warpgroups:  # the operands of two steps, and the sums of one
            operands, partial = 2 * 8 * (c.tile_k // 8), 4 * columns
        needed = 4 * rows * columns + operands + listed + partial + 40
        yield enough_registers(needed, threads * c.resident_blocks)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("stages", shared, device)
        yield resident_blocks_fit(c.resident_blocks, shared, device)

    @staticmethod
    def _warpgroup_constraints(
        problem: SddmmProblem, config: MmaSddmmConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield warpgroups_capable(device)
        yield Constraint(problem.dtype is DType.FLOAT32, "warpgroups multiply float32 here")
        yield Constraint(
            c.warps_m % 4 == 0 and c.tile_m == 16 * c.warps_m,
            f"a warpgroup's four of warps_m ({c.warps_m}) take 64 of tile_m ({c.tile_m}) rows",
        )

    def requirements(
        self, problem: SddmmProblem, features: Features, config: MmaSddmmConfig
    ) -> Iterator[Constraint]:
        least = 32 if problem.dtype is DType.FLOAT32 else 64
        tiles = expected_tiles(features, config.tile_m, config.tile_n)
        filled = features.nnz / (tiles * config.tile_m * config.tile_n) if tiles else 1.0
        yield Constraint(
            filled * least >= 1,
            f"tiles of {config.tile_m} by {config.tile_n} used columns have a nonzero in one place of {least} or more "
            f"({filled:.2%} of them expected)",
        )

    @staticmethod
    def _is_aligned(problem: SddmmProblem) -> bool:
        return problem.k * problem.dtype.itemsize % 16 == 0

    @staticmethod
    def _shared_bytes(problem: SddmmProblem, config: MmaSddmmConfig) -> int:
        """The stages, or the results that are staged after them; and the rows' shifts."""
        c = config
        stages = c.stages * (c.tile_m + c.tile_n) * c.tile_k * problem.dtype.itemsize
        if c.warpgroups:
            stages += 2 * c.tile_n * c.tile_k * problem.dtype.itemsize
        return max(stages, c.tile_m * (c.tile_n + PITCH_PADDING) * 4) + c.tile_m * 4

    def is_worth_trying(self, problem: SddmmProblem, config: MmaSddmmConfig, device: Device) -> bool:
        """True for 64 to 256 threads with nearly square parts of a tile, and no more stages than steps along k. It
        rests on arithmetic: loads for each product, and threads that would idle.
        """
        c = config
        if c.tile_m >= 2 * max(16, problem.m) or c.tile_n >= 2 * max(32, problem.n):
            return False
        if threads_of(c) not in (64, 128, 256) or (threads_of(c) == 64) != (c.tile_m * c.tile_n <= 2048):
            return False
        if c.resident_blocks * threads_of(c) > 512 or c.stages > 1 + max(1, ceil_div(problem.k, c.tile_k)):
            return False
        # Parts of k are for a few tiles, of which each block still takes several steps.
        tiles = problem.batch * ceil_div(problem.m, c.tile_m) * ceil_div(problem.n, c.tile_n)
        if c.splits > 1 and (
            tiles * c.splits > 4 * device.multiprocessors or problem.k < 4 * c.splits * c.tile_k
        ):
            return False
        # The part of each warp or warpgroup is near a square: fragments of both operands are used often.
        rows, columns = c.tile_m // c.warps_m * (4 if c.warpgroups else 1), c.tile_n // c.warps_n
        return rows <= 2 * columns and columns <= 4 * rows

    def constants(self, problem: SddmmProblem, config: MmaSddmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "divides_k": problem.k % config.tile_k == 0,
            "aligned": self._is_aligned(problem),
            **batch_constants(problem),
        }

    def pack(self, problem: SddmmProblem, config: MmaSddmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        panels = Panels.of(matrix, config.tile_m, config.tile_n, sort_rows=config.row_order == "by_column")
        begins, places = _interleaved(panels, WARP * config.step)
        tiles = np.column_stack((panels.of_tile, begins, panels.counts, np.zeros_like(begins)))
        arrays = {
            "tiles": empty_as_one(tiles.astype(np.int32)),
            "rows": empty_as_one(panels.rows),
            "columns": empty_as_one(panels.columns),
            "shifts": empty_as_one(panels.shifts),
            "places": empty_as_one(places),
        }
        sizes = {"tiles": panels.of_tile.size, "nnz": matrix.nnz}
        return self.with_values(problem, matrix, arrays, sizes)

    def expected_sizes(
        self, problem: SddmmProblem, features: Features, config: MmaSddmmConfig
    ) -> Mapping[str, int]:
        return {"tiles": math.ceil(expected_tiles(features, config.tile_m, config.tile_n))}

    def launch(
        self, problem: SddmmProblem, config: MmaSddmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(sizes["tiles"] * config.splits, 1, problem.batch),
            block=(threads_of(config), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: SddmmProblem, features: Features, config: MmaSddmmConfig, device: Device
    ) -> float:
        """Expected time of the fullest multiprocessor, if L2 does not take longer: its products and places, and what
        blocks wait for, one after the other.
        """
        c, rates, itemsize = config, device.expected_rates, problem.dtype.itemsize
        tiles = problem.batch * max(1.0, expected_tiles(features, c.tile_m, c.tile_n))
        threads, places, blocks = threads_of(c), c.tile_m * c.tile_n, c.splits * tiles
        # Each multiprocessor that a cluster can run on has as many blocks.
        at_once = c.splits * resident_clusters(device, c.splits) if c.splits > 1 else device.multiprocessors
        whole = ceil_div(math.ceil(blocks), at_once) * device.multiprocessors
        row = round_up(problem.k * itemsize, 64) // itemsize
        share = WARPGROUP_PRODUCTS if c.warpgroups else PRODUCTS[problem.dtype]
        tensor_cores = share * rates.tensor_products_per_us(problem.dtype)
        computed = whole * places * (row / c.splits / tensor_cores + PLACE_CYCLES / device.cycles_per_us)
        loaded = LOADS * whole * row / c.splits * itemsize * (c.tile_m + c.tile_n) / device.l2_bytes_per_us

        scaling = SCALE_CYCLES if problem.epilogue is SddmmEpilogue.SCALE else 0.0
        remote = c.splits * REMOTE_CYCLES if c.splits > 1 else 0.0
        of_thread = problem.batch * features.nnz / blocks / threads * (NONZERO_CYCLES + remote + scaling)
        if not self._is_aligned(problem):
            of_thread += row / c.splits * (c.tile_m + c.tile_n) / threads * UNALIGNED_CYCLES
        step_cycles = WARPGROUP_STEP_CYCLES if c.warpgroups else STEP_CYCLES / (c.stages - 1)
        steps = ceil_div(problem.k, c.splits * c.tile_k)
        met = CLUSTER_CYCLES if c.splits > 1 else 0.0
        fitting = resident_blocks(threads, USUAL_REGISTERS, self._shared_bytes(problem, c), device)
        turns = math.ceil(blocks / (at_once * max(fitting, c.resident_blocks)))
        waited = turns * (BLOCK_CYCLES + met + steps * step_cycles + of_thread) / rates.clock_mhz
        moved = MOVES * problem.cost(features.nnz).bytes / rates.copy_bytes_per_us
        return rates.launch_us + START_US + max(computed + waited, loaded) + moved

    def heuristic(self, problem: SddmmProblem, features: Features, device: Device) -> MmaSddmmConfig:
        """The shape, stages and blocks that should be fastest."""
        itemsize = problem.dtype.itemsize
        short, wide = 64 // itemsize, 128 // itemsize
        widths = (short,) if problem.k <= short else (wide, short)
        shapes = SHAPES
        if problem.dtype is DType.FLOAT32 and warpgroups_capable(device).holds and problem.k > short:
            shapes = WARPGROUP_SHAPES + SHAPES
        configs = [
            replace(
                shape,
                tile_k=tile_k,
                stages=min(stages, 1 + max(1, ceil_div(problem.k, tile_k))),
                step=self._step(problem, features, shape),
                resident_blocks=resident,
                splits=splits,
            )
            for shape in shapes
            for resident in (2, 1)
            for tile_k in ((wide,) if shape.warpgroups else widths)
            for stages in (3, 2)
            for splits in self._splits(problem, features, shape, tile_k, device)
        ]
        smallest = replace(SHAPES[-1], tile_k=short, stages=2)
        return self.fastest_valid(problem, features, configs, device, otherwise=smallest)

    @staticmethod
    def _splits(
        problem: SddmmProblem, features: Features, config: MmaSddmmConfig, tile_k: int, device: Device
    ) -> tuple[int, ...]:
        """No parts of k, and as many as tiles leave multiprocessors for, of four steps or more each."""
        if device.compute_capability < CLUSTERS:
            return (1,)
        tiles = problem.batch * max(1.0, expected_tiles(features, config.tile_m, config.tile_n))
        fitting = [
            splits
            for splits in (2, 4, 8)
            if splits * tiles <= 2 * device.multiprocessors and problem.k >= 4 * splits * tile_k
        ]
        return (1, *fitting[-2:])

    @staticmethod
    def _step(problem: SddmmProblem, features: Features, config: MmaSddmmConfig) -> int:
        """Nonzeros whose places are loaded together: as many as a thread has, at most 8."""
        tiles = max(1.0, expected_tiles(features, config.tile_m, config.tile_n))
        share = features.nnz / (tiles * threads_of(config))
        return next((step for step in (2, 4) if share <= step), 8)


def _interleaved(panels: Panels, batch: int) -> tuple[Array, Array]:
    """The nonzeros' places tile by tile, so that of each batch a warp's lanes take neighbours, one after the other.

    Args:
        batch: nonzeros that a warp loads at once, an equal number for each lane; a tile's places are padded to it.

    Returns:
        Of each tile where it begins, in batches; and the places (uint16).
    """
    batches = ceil_div(panels.counts, batch)
    begins = np.cumsum(batches) - batches
    whole, rest = np.divmod(panels.number, batch)
    position = (begins[panels.tile] + whole) * batch + rest % WARP * (batch // WARP) + rest // WARP
    places = np.zeros(int(batches.sum()) * batch, dtype=np.uint16)
    places[position] = panels.place
    return begins, places


FAMILY = MmaSddmm()
