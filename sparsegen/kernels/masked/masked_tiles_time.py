"""Expected time of the `MaskedTiles` families: the work of a multiprocessor and the waits of its blocks.

A multiprocessor works off its blocks: copies from the L2, shared memory, products. Beside it the steps of a block
follow one another, each behind its copies; within a step, copies are begun, fragments loaded and multiplied one after
the other, and only other warps of the same scheduler run meanwhile. What overlaps, though never whole, takes the root
of the sum of squares.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from sparsegen.kernels.base import Device
from sparsegen.kernels.layouts.limits import (
    REGISTERS_PER_MULTIPROCESSOR,
    SCHEDULERS,
    lacking_share,
    resident_blocks,
)
from sparsegen.kernels.layouts.loads import LEAST_ASYNC, LOAD_BYTES, SECTOR
from sparsegen.kernels.layouts.warp_tiles import sums_of, threads_of
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.kernels.masked.shared_tile import SharedTile
from sparsegen.kernels.masked.side import Side
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import DType, MaskedProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import round_up

PRODUCT_BYTES = 32  # bytes of the contraction in one tensor-core instruction
TF32_PRODUCTS = 3  # products that `tensor_products_per_us` assumes for a float32 product, which is one here
MOST_REGISTERS = 255  # of a thread
# Fitted on an H200 and an H100 (1,000 times of float16, bfloat16 and TF32; of one problem's, standard deviation 14 %):
# microseconds of the kernel's start and of a block's; those in which a thread begins one of its first copies, for
# which instructions have yet to come; those until a copy has come, of which stages on their way hide a part; those in
# which a sampled tile looks at one block of the mask.
START_US, BLOCK_US, FIRST_US = 0.7, 0.45, 0.006
ARRIVAL_US, LOOK_US = 0.52, 0.29
# Likewise, in a cycle of a multiprocessor: bytes that it copies from the L2, and that pass through its shared memory;
# and cycles in which a warp begins a copy, and in which it stores a vector of the result.
COPIED_PER_CYCLE, SHARED_PER_CYCLE = 25.0, 124.0
BEGUN_CYCLES, STORED_CYCLES = 3.1, 18.0
# Cycles in which a warp shifts a chunk for each of its lanes: some 30 instructions. It reads two chunks and writes one.
SHIFTED_CYCLES, SHIFTED = 7.5, 3
# Two meetings of a cluster, in microseconds, and bytes of other blocks' sums that its first block adds up in one.
MEETING_US, MERGED_PER_US = 1.5, 5e4
ENDS = 4  # sectors that a run of neighbours in a line has beside those that it fills, about
ACROSS = 0.43  # further bytes of shared memory for each of a TF32 fragment that lies across the contraction
UNEVEN = 2.2  # standard deviations by which the longest row of the mask is longer than the mean
# Further multiples of a step's time, by the share of a thread's registers that it lacks; and by how much the compiler
# can lower its need.
SPILLED, SAVED = 3.0, 1.2
# Of a row of the mask that shares a tile of a factor with others: what a step's work takes more; and microseconds in
# which a step of each is found.
MERGED, FOUND_US = 0.021, 0.028
# The power of the blocks in a step by which it takes longer, as they lie anywhere; and what `ahead` takes more where
# warps skip dead blocks.
SCATTERED, SKIPPED = 0.28, 0.1


class Times(NamedTuple):
    """Times that the blocks of a launch need, in microseconds.

    Attributes:
        begin, work, wait: of a block, before its first step; of a multiprocessor for a block's step; and from step
            to step of a block.
        store: of a multiprocessor for a block's results.
    """

    begin: float
    work: float
    wait: float
    store: float

    def wave(self, blocks: int, steps: float) -> float:
        """Microseconds of blocks that a multiprocessor runs at once."""
        busy, waiting = blocks * (steps * self.work + self.store), self.begin + steps * self.wait + self.store
        return math.hypot(busy, waiting)


@lru_cache(maxsize=64)  # a heuristic asks for each of its configs
def _least_bytes(problem: MaskedProblem) -> int:
    return problem.cost(0).bytes


def stored_cycles(side: Side, tile_m: int, tile_n: int) -> float:
    """Cycles in which a multiprocessor stores a tile's results pair by pair."""
    return STORED_CYCLES * min(tile_m, side.rows) * min(tile_n, side.columns) / (2 * WARP)


def live_tiles(side: Side, config: MaskedTilesConfig, share: float) -> float:
    """The expected share of tiles with any live block."""
    if not side.samples:
        return 1.0
    c = config
    return any_live(share, max(1, c.tile_m // side.row_block) * max(1, c.tile_n // side.inner_block))


def registers_of(side: Side, config: MaskedTilesConfig, loads: float) -> float:
    """Registers that a thread needs, about (270 kernels, within a fifth); ``loads``: of a thread in each step."""
    c = config
    fragments = (c.tile_m // c.warps_m + c.tile_n // c.warps_n) // 4
    words = 0 if side.samples else max(1, c.tile_m // side.row_block)  # of the mask
    return 12 + sums_of(c) + (3 if c.ahead else 1) * fragments + loads + 7 * words


def tiles_us(
    problem: MaskedProblem,
    side: Side,
    config: MaskedTilesConfig,
    tiles: int,
    shared_bytes: int,
    device: Device,
) -> float:
    """Expected microseconds.

    Args:
        tiles: their number in all.
        shared_bytes: shared memory of a block.
    """
    c, rates, share = config, device.expected_rates, problem.density.share
    size, threads = problem.dtype.itemsize, threads_of(c)
    warps, warp_m, warp_n = threads // WARP, c.tile_m // c.warps_m, c.tile_n // c.warps_n

    # Of tiles, or of a tile's steps, those with any live block; and of these what a warp, and a block, takes part in.
    mask_rows, mask_columns = max(1, c.tile_m // side.row_block), max(1, c.tile_n // side.inner_block)
    if side.samples:
        warp_blocks = max(1, warp_m // side.row_block) * max(1, warp_n // side.inner_block)
        live, mean, longest = live_tiles(side, c, share), 1.0, 1.0
        of_block, of_warp = share / live, any_live(share, warp_blocks) / live
        of_a, first_us = 1.0, ARRIVAL_US + LOOK_US * live / share
    else:
        live, mean = 1.0, any_live(share, mask_rows)
        longest = min(1.0, mean + UNEVEN * math.sqrt(mean * (1 - mean) * side.inner_block / side.inner))
        of_block, of_warp = share / mean, 1.0  # those of one scheduler are live or dead together
        of_a, first_us = of_block, ARRIVAL_US * math.ceil(side.inner / side.inner_block / 64)

    # Cycles of a multiprocessor for a block's step.
    factors = SharedTile.of_factors(side, c, problem.dtype)
    of_thread = sum(factor.copies(threads) * (1 + factor.shifts) for factor in factors)
    shifted = sum(factor.copies(threads) for factor in factors if factor.shifts)
    begun = warps * (BEGUN_CYCLES * of_thread + SHIFTED_CYCLES * shifted)
    lines = min(c.tile_m, side.rows) * of_a, min(c.tile_n, side.columns)
    # Elements that are shifted come with the rest of the sectors at both ends.
    sizes = (size + factor.shifts * factor.runs * SECTOR / factor.row for factor in factors)
    copied = c.step * sum(n * per for n, per in zip(lines, sizes, strict=True)) / COPIED_PER_CYCLE
    across = ACROSS if problem.dtype is DType.FLOAT32 else 0.0
    fragments = warp_m * (1 + across * (not side.a_by_inner)) + warp_n * (1 + across * (not side.b_by_inner))
    written, read = (c.step * size * n / SHARED_PER_CYCLE for n in (c.tile_m + c.tile_n, warps * fragments))
    written += SHIFTED * shifted * threads * LOAD_BYTES / SHARED_PER_CYCLE
    rate = rates.tensor_products_per_us(problem.dtype) / device.multiprocessors
    if problem.dtype is DType.FLOAT32:
        rate *= TF32_PRODUCTS
    multiplied = c.tile_m * c.tile_n * c.step * of_block / rate * rates.clock_mhz
    work = math.hypot(begun, copied, written + of_warp * read, multiplied) / rates.clock_mhz

    # The same where a block waits for itself. With fewer warps than schedulers, some of these have nothing to do; with
    # no more warps, none of them has another warp to run meanwhile.
    idle = max(1, SCHEDULERS / warps)
    parts = [idle * begun, idle * multiplied, written + of_warp * read]
    alone = (max(parts) if warps > SCHEDULERS else sum(parts)) / rates.clock_mhz
    wait = max(ARRIVAL_US / math.sqrt(c.stages - 1), alone)
    longer = 1 + SKIPPED * (c.ahead and (mask_rows > 1 or (side.samples and mask_columns > 1)))
    if not side.samples:
        longer *= max(1, c.step // side.inner_block) ** SCATTERED
        work *= 1 + MERGED * (mask_rows - 1)
    work, wait = longer * work, longer * wait
    if not side.samples:
        wait += FOUND_US * mask_rows
    if any(factor.vector * size < LEAST_ASYNC for factor in factors):  # by way of registers
        wait += ARRIVAL_US
    needed = registers_of(side, c, of_thread)
    most = min(MOST_REGISTERS, REGISTERS_PER_MULTIPROCESSOR // threads)
    slower = 1 + SPILLED * lacking_share(needed, round(SAVED * most))
    stored = stored_cycles(side, c.tile_m, c.tile_n) / rates.clock_mhz
    if side.by_lines:  # in pairs, 8 results a sector
        result = SharedTile.of_result(side, c, problem.dtype)
        stored *= 8 * (size / SECTOR + ENDS * result.runs / result.row)
    kept = side.samples and not side.fills
    blocks = max(1, math.ceil(tiles * live * c.parts / device.multiprocessors))
    steps = max(1.0, side.inner / (c.step * c.parts))
    first_us += FIRST_US * of_thread * (c.stages - 1 if c.ahead else min(c.stages - 1, mean * steps))
    if c.parts > 1:
        first_us += MEETING_US + (c.parts - 1) * 4 * c.tile_m * c.tile_n / MERGED_PER_US
    times = Times(BLOCK_US + first_us, slower * work, slower * wait, stored * (of_block if kept else 1))

    # Waves of blocks with any live tile, and the dead ones.
    registers = round_up(min(most, int(needed)), 8)
    resident = resident_blocks(threads, registers, shared_bytes, device)
    waves, rest = divmod(blocks, resident)
    steps_us = waves * times.wave(resident, mean * steps) + (times.wave(rest, mean * steps) if rest else 0.0)
    steps_us = max(steps_us, times.wave(1, longest * steps))  # a long tile runs beside short ones
    if side.samples:
        looked = BLOCK_US + LOOK_US * mask_rows * mask_columns
        dead = tiles * c.parts * (1 - live) / device.multiprocessors
        steps_us += dead * max(looked / resident, 0.0 if kept else stored)
    moved = _least_bytes(problem) / rates.copy_bytes_per_us
    return rates.launch_us + START_US + max(moved, steps_us)
