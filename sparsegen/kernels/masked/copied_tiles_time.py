"""Expected times of masked products whose tiles TMA loads.

A step brings 128 bytes of each of the tile's rows and columns. It takes what the tensor cores take, or what the bytes
take from the L2: thread blocks that compute at the same time get equal parts of its rate. So steps of the last, uneven
wave are shorter. Tiles are counted out to thread blocks, as the kernels do it: the longest first, forwards and
backwards in turn, or whole waves of equally long ones.

Constants are fitted to 454 times of one H100 and one H200 (float16, bfloat16, TF32, 8 bits; 1,024³ to 8,192³ and drawn
products): of one, the standard deviation is 8 %, where it was 18 % with tiles that end together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from sparsegen.kernels.base import Device
from sparsegen.kernels.layouts.copied_ring import ROW_BYTES, TILE_M
from sparsegen.kernels.masked.masked_tiles_time import TF32_PRODUCTS
from sparsegen.kernels.rates import overlapped
from sparsegen.operators import DType, Float8

# Fraction of the rate of large dense products that a multiprocessor reaches, by a tile's columns: their clock is lower.
# Tiles of sampled products are scattered columns.
REACHED = {256: 1.13, 192: 1.06, 128: 1.06, 64: 0.79}
SAMPLED_REACHED = {256: 1.17, 192: 1.06, 128: 1.06, 64: 0.67}
REACHED_BY_8BIT = {256: 0.92, 192: 0.92, 128: 1.06, 64: 0.68}
TF32_REACHED = 0.97
# Bytes that a multiprocessor gets from the L2 in a cycle: among all, of sampled products, and alone.
L2_BYTES, SAMPLED_L2_BYTES, MOST_BYTES = 42.0, 44.6, 107.0
SKEWED = 1.9  # times their bytes that rows take which begin at no multiple of 128 bytes, in two lines of the L2 each
NORM = 5.4  # of products and loads of a step (`overlapped`)
MOVED = 0.34  # of the time of a product's bytes in memory that its steps do not hide, or of these that it does not
START_US, TILE_US = 2.3, 0.5  # the kernel's start; a tile's prologue and epilogue
COUNTED_US = 0.7  # a sampled product counts all rows' live blocks before it knows its first tile
TOGETHER = 0.75  # rate of tiles that blocks share
# Bytes of parts of sums that a multiprocessor writes, and reads, in a cycle: as in `bitmap_spmm`.
WRITTEN, ADDED = 13, 39
FEW = 8  # tiles for each cluster, up to which they are counted out
MOST_RANKS = 64  # ranks of rows that stand for all
# Standard deviations with weights that stand for the tiles that masks of one density may have.
MORE_OR_LESS = ((-1.3, 0.2), (-0.5, 0.3), (0.5, 0.3), (1.3, 0.2))


class Tiles(NamedTuple):
    """Tiles of a product on a device.

    Attributes:
        cluster: thread blocks that share the loads of A.
        rows: fraction of the steps of a tile, or of the columns of a sampled one, in which each half of its rows takes
            part.
        skewed_a, skewed_b: true if rows of A, and of B, begin at no multiple of 128 bytes.
        samples: true if the mask covers the result.
        block: columns of its blocks there.
    """

    device: Device
    factor: DType | Float8
    cluster: int
    rows: float
    skewed_a: bool
    skewed_b: bool
    samples: bool
    block: int

    @property
    def clusters(self) -> int:
        """Clusters that compute at the same time."""
        return max(1, self.device.multiprocessors // self.cluster)

    def step_us(self, columns: int, clusters: float) -> float:
        """Microseconds of a step of tiles with these columns, while some clusters compute."""
        rates, cycles = self.device.expected_rates, self.device.cycles_per_us
        is_8bit = isinstance(self.factor, Float8)
        inner = ROW_BYTES // (1 if isinstance(self.factor, Float8) else self.factor.itemsize)
        rate = rates.tensor_products_per_us(self.factor) / self.device.multiprocessors
        rate *= _at(columns, REACHED_BY_8BIT if is_8bit else SAMPLED_REACHED if self.samples else REACHED)
        if self.factor is DType.FLOAT32:
            rate *= TF32_PRODUCTS * TF32_REACHED
        multiplied = TILE_M * columns * inner * self._multiplied(columns) / rate
        a = (SKEWED if self.skewed_a else 1.0) * TILE_M * (1.0 if self.samples else self.rows) / self.cluster
        b = (SKEWED if self.skewed_b else 1.0) * columns
        shared = SAMPLED_L2_BYTES if self.samples else L2_BYTES
        part = self.device.multiprocessors / max(1.0, clusters * self.cluster)
        bytes_per_us = min(MOST_BYTES, shared * part) * cycles / self.device.multiprocessors
        loaded = ROW_BYTES * (a + b) / bytes_per_us
        return overlapped(NORM, multiplied, loaded)

    def _multiplied(self, columns: int) -> float:
        """Fraction of a step's products that its time counts; of what is skipped, the other half's products saves some.

        Halves of walked tiles skip steps by themselves: half of what is skipped is saved, about. All halves of a
        cluster's sampled tiles wait in each step for the one with most live blocks.
        """
        if not self.samples:
            return math.sqrt(self.rows)
        if self.rows == 1.0:
            return 1.0
        return busiest_half(self.rows, max(1, columns // self.block), self.cluster)

    def spread_us(self, columns: int, spread: Spread) -> float:
        """Microseconds of tiles with these columns that are spread over the clusters."""
        tail = spread.most - spread.least
        busy = (spread.total - spread.least * self.clusters) / tail if tail else 0.0
        return spread.least * self.step_us(columns, self.clusters) + tail * self.step_us(columns, busy)


@lru_cache(maxsize=256)
def busiest_half(share: float, blocks: int, tiles: int) -> float:
    """Expected fraction of a tile's blocks that are live in the half, of several tiles', where most are.

    Args:
        share: the fraction in each half, where each block is live in at least one of the two.
        blocks: number in each tile.
    """
    both, alone = 2.0 * share - 1.0, 1.0 - share  # probabilities: live in both, and in the upper half alone
    chances = [0.0] * (blocks + 1)  # of the greater number in a tile
    for shared in range(blocks + 1):
        for upper in range(blocks - shared + 1):
            lower = blocks - shared - upper
            ways = math.comb(blocks, shared) * math.comb(blocks - shared, upper)
            chances[shared + max(upper, lower)] += ways * both**shared * alone ** (upper + lower)
    most = sum(1.0 - below**tiles for below in accumulate(chances[:-1]))
    return most / blocks


def _at(columns: int, rates: dict[int, float]) -> float:
    """The rate of a width between two that were timed."""
    below, above = max(w for w in rates if w <= columns), min(w for w in rates if w >= columns)
    part = (columns - below) / (above - below) if above > below else 0.0
    return rates[below] + part * (rates[above] - rates[below])


class Spread(NamedTuple):
    """Steps of the cluster with most of them, with least, and of all; tiles of the first one."""

    most: float
    least: float
    total: float
    tiles: float


def ranked_blocks(blocks: int, share: float, ranks: int) -> list[float]:
    """Expected live blocks of rows of some blocks each, the row with most of them first; of as many rows as given."""
    deviation = math.sqrt(blocks * share * (1 - share))
    places = ((rank + 0.5) / ranks for rank in reversed(range(ranks)))
    # Tukey's lambda distribution, whose quantiles need no series, is a normal one but for .01 deviations.
    normal = ((place**0.135 - (1 - place) ** 0.135) / 0.1975 for place in places)
    return [min(blocks, max(0.0, blocks * share + deviation * z)) for z in normal]


def counted_out(rows: Sequence[float], columns: int, clusters: int) -> Spread:
    """Tiles counted out to clusters, forwards and backwards in turn.

    Args:
        rows: steps of a tile in each row of tiles, the longest first.
        columns: tiles in a row.
    """
    tiles, total = len(rows) * columns, sum(rows) * columns
    if tiles > FEW * clusters:
        each = total / clusters
        return Spread(each, each, total, tiles / clusters)
    steps = [0.0] * clusters
    for number in range(tiles):
        turn, place = divmod(number, clusters)
        steps[clusters - 1 - place if turn % 2 else place] += rows[number // columns]
    most = max(steps)
    count = tiles // clusters + (1 if steps.index(most) in _last(tiles, clusters) else 0)
    return Spread(most, min(steps), total, count)


def _last(tiles: int, clusters: int) -> range:
    """The clusters that have a tile of the last, uneven turn."""
    turn, left = divmod(tiles, clusters)
    return range(clusters - left, clusters) if turn % 2 else range(left)


def sampled_us(
    tiles: Tiles, steps: int, columns: int, narrow: int, count: Counts, *, halves: bool = False
) -> float:
    """Microseconds of equally long tiles of a sampled product, then of narrow ones, for masks of one density.

    Args:
        halves: wide tiles of the last wave are narrow ones, if they are one wave then.
    """

    def waves_us(wide: float) -> float:
        wave, left = divmod(max(0.01, wide), tiles.clusters)
        us = wave * tile_us(columns, tiles.clusters)
        remaining = count.narrow
        if halves and wave >= 1 and 2 * left + remaining <= tiles.clusters:
            remaining, left = remaining + 2 * left, 0.0
        if left > 0.5:  # clusters without a wide tile take narrow ones meanwhile
            each = tile_us(columns, tiles.clusters) // tile_us(narrow, tiles.clusters)
            taken = min(remaining, each * (tiles.clusters - left))
            remaining -= taken
            us += tile_us(columns, min(tiles.clusters, left + taken / max(1.0, each)))
        if remaining > 0.5:
            turns = math.ceil(remaining / tiles.clusters)
            us += turns * tile_us(narrow, remaining / turns)
        return us

    def tile_us(width: int, clusters: float) -> float:
        return steps * tiles.step_us(width, clusters) + TILE_US

    return sum(weight * waves_us(count.wide + off * count.deviation) for off, weight in MORE_OR_LESS)


class Counts(NamedTuple):
    """Expected wide and narrow tiles of a sampled result, and the standard deviation of the wide ones."""

    wide: float
    narrow: float
    deviation: float


def sampled_counts(
    blocks: int, share: float, rows: int, *, of_block: int, of_tile: int, of_narrow: int
) -> Counts:
    """The tiles of rows of tiles with some blocks each, of which a share is live.

    Args:
        of_block, of_tile, of_narrow: units of columns in a block, in a cluster's wide tiles, and the most in its narrow
            ones, which take what is left of a row.
    """
    ranks = max(1, min(rows, MOST_RANKS))
    wide = narrow = 0.0
    for live in ranked_blocks(blocks, share, ranks):
        for whole, weight in ((math.floor(live), 1 - live % 1), (math.floor(live) + 1, live % 1)):
            tiles, left = divmod(whole * of_block, of_tile)
            is_narrow = 0 < left <= of_narrow < of_tile
            wide += weight * (tiles + (left > 0 and not is_narrow))
            narrow += weight * is_narrow
    deviation = math.sqrt(rows * blocks * share * (1 - share)) * of_block / of_tile
    return Counts(wide * rows / ranks, narrow * rows / ranks, deviation)


def sums_us(device: Device, columns: int, rounds: float) -> float:
    """Microseconds in which a block writes parts of two tiles, and adds up those of one."""
    of_part = TILE_M * columns * DType.FLOAT32.itemsize
    cycles = of_part * (2 / WRITTEN + (1 + 1 / min(1.0, rounds)) / ADDED)
    return cycles / device.expected_rates.clock_mhz


def parts_us(device: Device, sums: int, parts: int) -> float:
    """Microseconds in which a block writes its part of a tile's sums, and the last one adds up all parts.

    Args:
        sums: of a tile.
    """
    cycles = sums * DType.FLOAT32.itemsize * (1 / WRITTEN + parts / ADDED)
    return cycles / device.expected_rates.clock_mhz
