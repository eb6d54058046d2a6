"""Predicted time of `mma_spmm`: the larger of the work of a multiprocessor and the waits of its warps.

A multiprocessor works off its blocks' tiles: products, loads, nonzeros to be placed. Beside it a block's tiles follow
one another, each by steps of a warp whose loads, splits and products wait for each other; where few warps share a
multiprocessor, nothing fills these times. The two are added as squares are: the lesser one hardly counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sparsegen.kernels.base import Device
from sparsegen.kernels.layouts.limits import REGISTERS_PER_MULTIPROCESSOR, resident_blocks
from sparsegen.kernels.layouts.loads import LOAD_BYTES, SECTOR, divided_sectors_us, widest_vector
from sparsegen.kernels.spmm.mma_spmm_config import MmaSpmmConfig
from sparsegen.kernels.spmm.tensor_tiles import STEP, held_share
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.integers import ceil_div

# More nonzeros of a tile than its mean, so that most tiles have fewer.
FULLER = 1.05


class Costs(NamedTuple):
    """Fitted costs of the parts of a tile's time.

    Attributes:
        start_us: microseconds of the kernel's start.
        product: multiples of the tensor cores' time.
        spilled: further multiples of products and steps, by the share of a thread's registers that it lacks.
        load_a, load_b, unaligned: multiples of the L2's time for whole tiles of A, for tiles of B, and more for those
            that come in single elements; copies of several take as much less.
        fragment: multiples of the L2's time for what warps read of both tiles in shared memory, and split.
        nonzero_cycles: cycles of a multiprocessor to put a nonzero to its place.
        step_cycles: cycles that a warp waits in each step of an instruction's depth; ``column_cycles`` and
            ``product_cycles``, for each 8 columns of its part and for each 16 rows of these.
        expanding_us, whole_us: microseconds of a step to the next tile of nonzeros, and to the next whole one.
        warp_us: microseconds of the same for each warp of a block, as they wait for one another.
        late_us: microseconds of each vector of nonzeros that a thread does not take ahead.
        element_cycles: cycles of a multiprocessor for an element of C, in each of ``warps_k``.
        move: multiples of the memory's time.
    """

    start_us: float
    product: float
    spilled: float
    load_a: float
    load_b: float
    unaligned: float
    fragment: float
    nonzero_cycles: float
    step_cycles: float
    column_cycles: float
    product_cycles: float
    expanding_us: float
    whole_us: float
    warp_us: float
    late_us: float
    element_cycles: float
    move: float


class Registers(NamedTuple):
    """A thread takes these of the compiler where it may (some 2,000 variants, within a tenth).

    Attributes:
        fixed: addresses and the like, and ``nonzeros``, more where nonzeros are placed.
        product, column, row: registers for each 16 by 8 sums, each 8 columns and each 16 rows of a warp's part.
        word: registers for each 4 bytes of nonzeros in flight.
    """

    fixed: float
    nonzeros: float
    product: float
    column: float
    row: float
    word: float

    def needed(self, config: MmaSpmmConfig, itemsize: int) -> float:
        rows, columns = config.tile_m // (16 * config.warps_m), config.tile_n // (8 * config.warps_n)
        held = self.fixed + self.product * rows * columns + self.column * columns + self.row * rows
        if config.storage == "tiles":
            return held
        return held + self.nonzeros + self.word * config.prefetch * STEP * (2 + itemsize) / 4


OF_FLOAT32 = Costs(
    start_us=1.82,
    product=1.30,
    spilled=0.40,
    load_a=0.055,
    load_b=0.104,
    unaligned=1.7,
    fragment=0.261,
    nonzero_cycles=0.34,
    step_cycles=88.0,
    column_cycles=15.6,
    product_cycles=14.0,
    expanding_us=0.562,
    whole_us=0.143,
    warp_us=0.0,
    late_us=1.37,
    element_cycles=0.170,
    move=0.331,
)
OF_HALF = Costs(
    start_us=1.75,
    product=0.543,
    spilled=2.27,
    load_a=0.274,
    load_b=0.289,
    unaligned=3.6,
    fragment=0.032,
    nonzero_cycles=0.25,
    step_cycles=52.0,
    column_cycles=0.0,
    product_cycles=3.34,
    expanding_us=0.518,
    whole_us=0.066,
    warp_us=0.020,
    late_us=0.463,
    element_cycles=0.053,
    move=0.634,
)
COSTS = {DType.FLOAT32: OF_FLOAT32, DType.FLOAT16: OF_HALF, DType.BFLOAT16: OF_HALF}
# float32: both parts of each factor are held, and sums of two steps.
REGISTERS_OF_FLOAT32 = Registers(41, 16, 7.8, 4.0, 9.7, 1.25)
REGISTERS_OF_HALF = Registers(49, 5, 3.7, 3.0, 6.0, 2.2)
REGISTERS_OF_WARPGROUPS = Registers(90, 0, 3.0, 0.0, 0.0, 1.8)
REGISTERS_OF_SPLIT_WARPGROUPS = Registers(104, 0, 8.0, 0.0, 0.0, 0.0)
# float32 by warpgroups: the multiple of the tensor cores' time, and cycles of a step, and more for each row of a tile.
SPLIT_PRODUCT, SPLIT_STEP_CYCLES, SPLIT_ROW_CYCLES = 1.05, 100.0, 1.5


def modelled_us(
    problem: SpmmProblem, features: Features, config: MmaSpmmConfig, device: Device, shared_bytes: int
) -> float:
    """Microseconds of a config whose constraints hold.

    Args:
        shared_bytes: bytes of a multiprocessor's shared memory that a block takes.
    """
    c, rates, itemsize = config, device.expected_rates, problem.dtype.itemsize
    costs, is_whole, clock = COSTS[problem.dtype], c.storage == "tiles", rates.clock_mhz
    registers, lacking = _registers(c, itemsize)
    resident = resident_blocks(c.threads, registers, shared_bytes, device)
    blocks = problem.batch * ceil_div(problem.m, c.tile_m) * ceil_div(problem.n, c.tile_n)
    each, rounds = (
        ceil_div(blocks, device.multiprocessors),
        ceil_div(blocks, resident * device.multiprocessors),
    )
    panels, held = ceil_div(problem.k, c.tile_k), held_share(features, c.tile_m, c.tile_k)
    # Tiles beyond the mean of the block of rows that has most tiles with a nonzero: it may come last.
    behind = panels * max(0.0, features.row_max / max(1, problem.k) - held)
    tiles, chain = each * panels * held + behind, rounds * panels * held + behind  # of a multiprocessor

    a, b = c.tile_m * c.tile_k * itemsize, c.tile_n * c.tile_k * itemsize  # bytes of their tiles
    if problem.layout is Layout.ROW:
        contiguous, loaded_b = problem.n, b * max(1.0, SECTOR / (c.tile_n * itemsize))
        lines, line, of_tile = problem.m, problem.n, c.tile_n  # of C, as they lie in memory
    else:
        contiguous, loaded_b = problem.k, float(b)
        lines, line, of_tile = problem.n, problem.m, c.tile_m
    vector = widest_vector(contiguous, problem.dtype)
    loaded = (costs.load_b + (costs.unaligned / vector if vector * itemsize < LOAD_BYTES else 0.0)) * loaded_b
    rows, columns = c.tile_m // (16 * c.warps_m), c.tile_n // (8 * c.warps_n)
    waited = costs.step_cycles
    if is_whole:
        loaded += costs.load_a * a
        placed = late = 0.0
        stored = held * problem.m * problem.k * itemsize
    else:
        nonzeros = c.tile_m * c.tile_k * features.density
        placed = costs.nonzero_cycles * nonzeros / clock
        late = costs.late_us * max(0.0, FULLER * nonzeros / (STEP * c.threads) - c.prefetch)
        stored = features.nnz * (2.0 + itemsize)
    product_us = costs.product * c.tile_m * c.tile_n * c.tile_k / rates.tensor_products_per_us(problem.dtype)
    if c.warpgroups and problem.dtype is DType.FLOAT32:
        waited = SPLIT_STEP_CYCLES + SPLIT_ROW_CYCLES * c.tile_m
        product_us *= SPLIT_PRODUCT / costs.product
    elif not c.warpgroups:
        waited += columns * (costs.column_cycles + costs.product_cycles * rows)
        product_us += costs.fragment * (a * c.warps_n + b * c.warps_m) / device.l2_bytes_per_us
    slower = 1.0 + costs.spilled * lacking
    work_us = device.multiprocessors * (slower * product_us + loaded / device.l2_bytes_per_us) + placed
    steps = c.tile_k * itemsize // (32 * c.warps_k)
    wait_us = slower * steps * waited / clock + (costs.whole_us if is_whole else costs.expanding_us)
    wait_us += late + costs.warp_us * c.threads / 32
    moved = problem.batch * (problem.k + problem.m) * problem.n * itemsize + problem.value_sets * stored
    return (
        rates.launch_us
        + costs.start_us
        + costs.element_cycles * each * c.tile_m * c.tile_n * c.warps_k / clock
        + costs.move * moved / rates.copy_bytes_per_us
        + divided_sectors_us(problem.batch * lines, line * itemsize, ceil_div(line, of_tile), device)
        + math.hypot(tiles * work_us, chain * wait_us)
    )


def _registers(config: MmaSpmmConfig, itemsize: int) -> tuple[int, float]:
    """Registers of a thread, and the share of those it needs that it lacks."""
    is_float = itemsize == 4
    kind = REGISTERS_OF_FLOAT32 if is_float else REGISTERS_OF_HALF
    if config.warpgroups:
        kind = REGISTERS_OF_SPLIT_WARPGROUPS if is_float else REGISTERS_OF_WARPGROUPS
    needed = kind.needed(config, itemsize)
    most = REGISTERS_PER_MULTIPROCESSOR // (config.threads * config.resident_blocks) // 8 * 8
    available = min(255, most)
    taken = min(available, math.ceil(needed / 8) * 8)
    return taken, max(0.0, 1.0 - available / needed)
