"""SpMM for rows of very different lengths, as graphs have them: long rows are cut, and a subwarp takes each segment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import resident_blocks, tiles_in_grid
from sparsegen.kernels.layouts.loads import LINE_BYTES, LOAD_BYTES, SHORT_INDICES, indices_fit, widest_vector
from sparsegen.kernels.layouts.padding import stored_values
from sparsegen.kernels.layouts.rows import align_runs
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.gather_time import (
    LARGE_TILE_BYTES,
    by_dtype,
    idle_share,
    missing_share,
    work_us,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

QUAD = 4  # nonzeros that are loaded at once; segments are padded to whole quads
NARROWEST_TILE = 4
NO_PART = -1
REGISTERS = (32, 64, 128)
WIDEST_TILE_BYTES = 512  # bytes of a row of B
L1_BYTES = 200_000


class Costs(NamedTuple):
    """Fitted costs of the parts of the time; in a multiprocessor's cycles unless stated.

    Attributes:
        start_us: microseconds of the kernel's start.
        product: cost of a product; and ``line``, of each line of 128 bytes that is read for a nonzero.
        idle: further cost of a product, by the share of the last blocks' multiprocessors that have none.
        segment: cost to begin a segment of a tile; and ``part_sum``, to write and add up a sum of a row that was cut.
        step: cost of nonzeros whose loads of B are in flight at once.
        nonzero: further cost of each of them.
        turn: cost of a block that follows another in its place.
        cut: cost of any row that was cut, until its last part has come; and ``further_part``, of each part of the
            longest.
        a, far: multiples of the L2's time for A, which comes again for each tile, and for rows of B that L1 does not
            hold; and ``farther``, beside, for those of a large tile of B.
        b, c: multiples of the memory's time for B and C.
    """

    start_us: float
    product: float
    line: float
    idle: float
    segment: float
    part_sum: float
    step: float
    nonzero: float
    turn: float
    cut: float
    further_part: float
    a: float
    far: float
    farther: float
    b: float
    c: float


COSTS = by_dtype(  # of 16-bit elements, of float32
    Costs,
    start_us=(0.92, 1.21),
    product=(0.0187, 0.0),
    line=(0.0, 0.296),
    idle=(0.0311, 0.0322),
    segment=(23.6, 0.0),
    part_sum=(1.05, 1.19),
    step=(250.0, 173.0),
    nonzero=(45.1, 41.5),
    turn=(930.0, 364.0),
    cut=(2500.0, 2240.0),
    further_part=(87.9, 26.7),
    a=(0.086, 4.9),
    far=(0.113, 0.124),
    farther=(0.089, 0.14),
    b=(0.79, 1.04),
    c=(0.0, 0.783),
)


@dataclass(frozen=True, eq=False, repr=False)
class SegmentSpmmConfig(Config):
    """One point of the tuning space of `SegmentSpmm`."""

    segment: int = tunable(
        128,
        (32, 64, 128, 256, 512, 1024),
        "nonzeros that a subwarp takes at most; longer rows are cut evenly",
        searched=(32, 64, 128, 256),
        packs=True,
    )
    tile_n: int = tunable(32, (4, 8, 16, 32, 64, 128, 256), "columns of C per block")
    threads_per_segment: int = tunable(8, (4, 8, 16, 32), "threads of a subwarp")
    vector: int = tunable(4, (1, 2, 4, 8), "elements per load of B and store of C")
    ahead: int = tunable(8, (4, 8, 16), "nonzeros whose rows of B are loaded before the first is multiplied")
    warps: int = tunable(4, (2, 4, 8), "warps per block", searched=(4, 8))
    registers: int = tunable(64, REGISTERS, "registers per thread that the compiler may use")
    order: str = tunable(
        "sorted",
        ("natural", "sorted"),
        "segments as the rows are, or by falling length, so that subwarps of a warp end together",
        packs=True,
    )
    index_bits: int = tunable(32, (16, 32), "bits of a stored column index", packs=True)


class SegmentSpmm(Family[SpmmProblem, SegmentSpmmConfig]):
    """Short rows by one subwarp each; the parts of long rows are added up by the last subwarp to come, in their order.

    So equal inputs give equal bits on every call. Zeros of A are not multiplied: an infinity or NaN of B reaches only
    rows that have a nonzero there.
    """

    name = "segment_spmm"
    summary = "CSR SpMM for rows of very different lengths (graphs): long rows are cut in segments"
    source = (
        "neighbours of a node in groups of bounded size: Wang et al., GNNAdvisor, OSDI 2021, section 4; the sum of a "
        "row's parts in a fixed order is sparsegen's own"
    )
    size_names = ("m", "k", "n", "segment_count", "part_count")
    packed_names = ("segments", "indices", "values", "cuts")
    scratch_names = ("parts", "counters")

    def batch_size_names(self, problem: SpmmProblem) -> tuple[str, ...]:
        return ("stored",) if problem.value_sets > 1 else ()

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield Constraint(problem.layout is Layout.ROW, f"B and C ({problem.layout}) are row-major")
        yield batch_in_grid(problem)

    def constraints(
        self, problem: SpmmProblem, config: SegmentSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, itemsize = config, problem.dtype.itemsize
        yield Constraint(
            c.tile_n % (c.threads_per_segment * c.vector) == 0,
            f"threads_per_segment · vector ({c.threads_per_segment * c.vector}) divides tile_n ({c.tile_n})",
        )
        yield Constraint(
            problem.n % c.vector == 0,
            f"vector ({c.vector}) divides n ({problem.n}), so that rows of B and C are aligned",
        )
        yield Constraint(
            c.vector * itemsize <= LOAD_BYTES, f"vector ({c.vector}) elements are at most {LOAD_BYTES} bytes"
        )
        needed = _registers(problem, c)
        yield Constraint(
            needed <= c.registers,
            f"registers ({c.registers}) hold a thread's sums, and what it loads ahead: about {needed}",
        )
        yield indices_fit(c.index_bits, problem.k)
        yield tiles_in_grid("n / tile_n", problem.n, c.tile_n)

    def is_worth_trying(self, problem: SpmmProblem, config: SegmentSpmmConfig, device: Device) -> bool:
        """True for the widest loads, tiles between half and twice the useful width, the fewest registers that suffice,
        and the narrowest index type. It rests on arithmetic; docs/notes/gather-kernels.md has measurements of the
        configs that it keeps.
        """
        c = config
        vectors = c.tile_n // (c.threads_per_segment * c.vector)
        return (
            c.vector == widest_vector(problem.n, problem.dtype)
            and vectors <= (4 if c.vector > 1 else 2)
            and problem.n <= 4 * c.tile_n <= 8 * max(NARROWEST_TILE, problem.n)
            and c.registers == min((r for r in REGISTERS if r >= _registers(problem, c)), default=None)
            and c.index_bits == _index_bits(problem)
        )

    def constants(self, problem: SpmmProblem, config: SegmentSpmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "columns_divide": problem.n % config.tile_n == 0,
            **batch_constants(problem),
        }

    def pack(self, problem: SpmmProblem, config: SegmentSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        cut, of_part = _cut(matrix.row_offsets.astype(np.int64), config.segment)
        if config.order == "sorted":
            cut = cut[np.argsort(-cut[:, 1], kind="stable")]
        runs = align_runs(cut[:, 1], cut[:, 0], QUAD, tail=QUAD)
        segments = np.stack([runs.offsets[:-1], np.diff(runs.offsets), cut[:, 2], cut[:, 3]], axis=1)
        index_type = np.uint16 if config.index_bits == 16 else np.uint32
        width = ceil_div(problem.n, NARROWEST_TILE)
        return Packed(
            arrays={
                "segments": empty_as_one(segments.astype(np.int32).ravel()),
                "indices": runs.gather_repeating(matrix.column_indices).astype(index_type),
                "values": stored_values(matrix, runs.source, problem.dtype),
                "cuts": empty_as_one(of_part.astype(np.int32).ravel()),
            },
            sizes={
                "segment_count": len(cut),
                "part_count": len(of_part),
                **({"stored": runs.source.size} if problem.value_sets > 1 else {}),
            },
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: runs.source,
            scratch={
                "parts": max(4, 4 * problem.batch * len(of_part) * problem.n),
                "counters": max(4, 4 * problem.batch * len(of_part) * width),
            },
        )

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: SegmentSpmmConfig
    ) -> Mapping[str, int]:
        """Long rows are cut into segments of equal lengths, and every row has one at least."""
        of_longest = max(1, ceil_div(features.row_max, config.segment))
        cut = math.ceil(features.nnz / config.segment) if of_longest > 1 else 0
        return {"segment_count": problem.m + cut}

    def launch(
        self, problem: SpmmProblem, config: SegmentSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        of_block = WARP * c.warps // c.threads_per_segment
        return Launch(
            grid=(ceil_div(sizes["segment_count"], of_block), ceil_div(problem.n, c.tile_n), problem.batch),
            block=(WARP * c.warps, 1, 1),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: SegmentSpmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        itemsize, costs = problem.dtype.itemsize, COSTS[problem.dtype]
        tiles, threads = ceil_div(problem.n, c.tile_n), WARP * c.warps
        is_cut = features.row_max > c.segment
        cut = problem.m * _longer(features, c.segment) if is_cut else 0.0
        parts = cut * max(2.0, features.row_mean / c.segment + 0.5)  # the last one of a row is half full
        segments = problem.m - cut + parts
        blocks = problem.batch * tiles * ceil_div(int(segments) * c.threads_per_segment, threads)
        places = resident_blocks(threads, c.registers, 0, device) * device.multiprocessors
        turns = ceil_div(blocks, places)
        idle = idle_share(blocks, device)
        products, row_bytes = features.nnz * tiles * c.tile_n, c.tile_n * itemsize
        cycles = products * (costs.product + idle * costs.idle)
        cycles += features.nnz * tiles * max(1.0, row_bytes / LINE_BYTES) * costs.line
        cycles += tiles * (segments * costs.segment + parts * c.tile_n * costs.part_sum)
        read = costs.a * features.nnz * tiles * (itemsize + c.index_bits // 8)
        beyond_l1 = costs.far * missing_share(problem.k * row_bytes, L1_BYTES)
        beyond_l1 += costs.farther * missing_share(problem.k * row_bytes, LARGE_TILE_BYTES)
        read += beyond_l1 * products * itemsize
        moved = costs.b * min(problem.k, features.nnz) + costs.c * problem.m
        longest = max(min(features.row_max, c.segment), turns * min(features.row_mean, c.segment))
        chain = longest * (costs.nonzero + costs.step / c.ahead) + turns * costs.turn
        if is_cut:
            chain += costs.cut + features.row_max / c.segment * costs.further_part
        return (
            rates.launch_us
            + costs.start_us
            + problem.batch * work_us(cycles, read, moved * problem.n * itemsize, device)
            + chain / rates.clock_mhz
        )

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> SegmentSpmmConfig:
        """The segments, tiles and loads that should be fastest."""
        vector, itemsize = widest_vector(problem.n, problem.dtype), problem.dtype.itemsize
        widest = WIDEST_TILE_BYTES  # or as much as has room in the L2 in all rows of B
        while widest > 8 * vector * itemsize and 2 * problem.k * widest > device.l2_bytes:
            widest //= 2
        likely = _likely(problem.n, vector, widest // itemsize, _index_bits(problem))
        return self.fastest(problem, features, likely, device)


@lru_cache(maxsize=1024)
def _likely(n: int, vector: int, widest: int, index_bits: int) -> tuple[SegmentSpmmConfig, ...]:
    """Blocks of 4 warps whose threads each have a vector, for n columns, in tiles of at most ``widest``."""
    found = []
    for segment, threads, ahead in itertools.product((32, 64, 128, 256), (4, 8, 16, 32), (8, 16)):
        tile_n = threads * vector
        if threads > 4 and (tile_n >= 2 * n or tile_n > widest):
            continue
        found.append(
            SegmentSpmmConfig(
                segment=segment,
                tile_n=tile_n,
                threads_per_segment=threads,
                vector=vector,
                ahead=ahead,
                registers=64 if ahead == 8 else 128,
                index_bits=index_bits,
            )
        )
    return tuple(found)


def _longer(features: Features, length: int) -> float:
    """The share of rows with more nonzeros, if their lengths are normally distributed."""
    deviation = max(1e-9, features.row_mean * features.row_cov)
    return 0.5 * math.erfc((length - features.row_mean) / (deviation * math.sqrt(2)))


def _index_bits(problem: SpmmProblem) -> int:
    return 16 if problem.k <= SHORT_INDICES else 32


def _registers(problem: SpmmProblem, config: SegmentSpmmConfig) -> int:
    """About how many a thread needs: its sums, what it loads ahead, and 16 more."""
    of_thread = config.tile_n // config.threads_per_segment
    return 16 + of_thread + config.ahead * max(1, of_thread * problem.dtype.itemsize // 4)


def _cut(offsets: Array, most: int) -> tuple[Array, Array]:
    """Splits rows into segments: whole ones, or even parts of at most ``most`` nonzeros.

    Args:
        offsets: row offsets of CSR, int64 [m + 1].

    Returns:
        int64 [segments, 4]: first nonzero, number of nonzeros, row, number of the part or `NO_PART`; and int64
        [parts, 2]: of each part the first one of its row, and how many these are.
    """
    lengths = np.diff(offsets)
    pieces = np.maximum(1, ceil_div(lengths, most))
    row = np.repeat(np.arange(lengths.size), pieces)
    number = np.arange(row.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    size = ceil_div(lengths, pieces)[row]
    begin = number * size
    count = np.clip(lengths[row] - begin, 0, size)
    is_part = pieces[row] > 1
    part = np.where(is_part, np.cumsum(is_part) - 1, NO_PART)
    segments = np.stack([offsets[row] + begin, count, row, part], axis=1)
    return segments, np.stack([part - number, pieces[row]], axis=1)[is_part]


FAMILY = SegmentSpmm()
