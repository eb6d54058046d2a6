"""Sputnik's SpMM: 1-D tiles, subwarps, vector accesses, row swizzle (Gale et al., SC 2020, section V)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import (
    allowed_registers_fit,
    lacking_share,
    resident_blocks,
    tiles_in_grid,
)
from sparsegen.kernels.layouts.loads import (
    LINE_BYTES,
    LOAD_BYTES,
    divided_sectors_us,
    indices_fit,
    widest_vector,
)
from sparsegen.kernels.layouts.padding import stored_values
from sparsegen.kernels.layouts.rows import align_rows, order_rows
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
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div


class Costs(NamedTuple):
    """Fitted costs of the parts of the time with a row-major B; in a multiprocessor's cycles unless stated.

    Attributes:
        start_us: microseconds of the kernel's start.
        product: cost of a product; and ``line``, of each line of 128 bytes that is read for a nonzero.
        narrow: further cost of a product that a load of B brings alone, where one could bring 16 bytes.
        idle: further cost of a product, by the share of the last blocks' multiprocessors that have none.
        row: cost to begin a row of a tile, for each subwarp that shares it; and ``sum``, to add up one of its sums.
        nonzero: cost of a nonzero of rows that follow one another on their threads.
        longest: further cost of a nonzero of the longest row.
        turn: cost of a block that follows another in its place.
        shared: cost of a nonzero in flight, if nonzeros are staged without a copy ahead.
        crowded: likewise, by the share of registers that there are too few for loads of B that overlap.
        a: multiples of the L2's time for A, which comes again for each tile.
        far: likewise, for rows of B's tile, if that is large: those that no other row of the multiprocessor shares.
        b, c: multiples of the memory's time for B and C.
    """

    start_us: float
    product: float
    line: float
    narrow: float
    idle: float
    row: float
    sum: float
    nonzero: float
    longest: float
    turn: float
    shared: float
    crowded: float
    a: float
    far: float
    b: float
    c: float


COSTS = by_dtype(  # of 16-bit elements, of float32
    Costs,
    start_us=(1.48, 1.37),
    product=(0.016, 0.0242),
    line=(0.32, 0.183),
    narrow=(0.04, 0.022),
    idle=(0.0713, 0.0863),
    row=(14.3, 10.5),
    sum=(0.0995, 0.083),
    nonzero=(35.2, 5.8),
    longest=(29.3, 39.9),
    turn=(55.3, 309.0),
    shared=(13.3, 15.6),
    crowded=(75.8, 92.4),
    a=(1.26, 2.5),
    far=(0.0724, 0.144),
    b=(1.11, 1.24),
    c=(0.297, 0.524),
)
FAR_NONZERO_CYCLES, MANY_ROWS = 36.6, 16384  # cycles of a nonzero in flight, if B has more rows than this
UNROLLED = 8  # nonzeros whose loads of B a thread has on their way at once
ADDRESS_REGISTERS = 24  # registers of a thread besides sums and these
# Likewise for a column-major B: for a line of it, of which a warp's load meets as many as a row has threads, as
# neighbouring rows meet in lines; to add up what subwarps that share a row hold, for each column; for a nonzero of the
# longest row or rows; and multiples of the L2's time for A.
STRIDED_START_US = 1.9
STRIDED_LINE_CYCLES, STRIDED_SUM_CYCLES = 1.08, 1.7
STRIDED_NONZERO_CYCLES, STRIDED_FAR_NONZERO_CYCLES = 66.0, 117.0
STRIDED_LONE_NONZERO_CYCLES = 117.0  # of the longest row, where no other one hides its waits
STRIDED_LOADS_OF_A = 1.65
MARGIN = 256  # columns past n that a partial tile may compute addresses for


@dataclass(frozen=True, eq=False, repr=False)
class CsrSpmmConfig(Config):
    """One point of the tuning space of `CsrSpmm`."""

    tile_n: int = tunable(64, (8, 16, 32, 64, 128, 256), "columns of C per block", searched=(8, 32, 64, 128))
    tile_k: int = tunable(8, (4, 8, 16, 32), "nonzeros per unrolled strip", searched=(8, 16))
    rows_per_block: int = tunable(8, (1, 2, 4, 8, 16, 32, 64), "rows of C per block")
    threads_per_row: int = tunable(16, (2, 4, 8, 16, 32), "threads of a subwarp", searched=(4, 8, 16, 32))
    row_splits: int = tunable(
        1, (1, 2, 4, 8), "subwarps that share the nonzeros of a row", searched=(1, 2, 4)
    )
    dense_vector_width: int = tunable(4, (1, 2, 4, 8), "elements per load of B and store of C")
    sparse_vector_width: int = tunable(4, (1, 2, 4), "nonzeros per load of A", searched=(4,), packs=True)
    row_alignment: str = tunable(
        "padded",
        ("padded", "reverse_offset"),
        "how vector loads of A are aligned: rows padded with zeros, or stepping back and masking",
        searched=("padded",),
        packs=True,
    )
    row_order: str = tunable(
        "sorted",
        ("natural", "sorted"),
        "row swizzle: rows by falling length, so that rows of like length share a block and long blocks come first",
        searched=("sorted",),
        packs=True,
    )
    prescale_indices: bool = tunable(
        True,
        (False, True),
        "column indices stored as byte offsets of B's rows",
        searched=(False, True),
        packs=True,
    )
    residue_unroll: bool = tunable(False, (False, True), "unroll the residue of a row", searched=(False,))
    staging: str = tunable(
        "shared_async",
        ("shared", "shared_async"),
        "how a subwarp reads its nonzeros: through shared memory, or with cp.async ahead",
    )
    registers: int = tunable(
        64, (32, 64, 128), "registers per thread that the compiler may use", searched=(64, 128)
    )
    index_bits: int = tunable(32, (16, 32), "bits of a stored column index", packs=True)


class CsrSpmm(Family[SpmmProblem, CsrSpmmConfig]):
    """Rows of C in 1-D tiles; each row's nonzeros gather rows of B through the L1 cache.

    With ``row_alignment = reverse_offset`` a row also multiplies zeros by what its neighbours' nonzeros meet, so
    that an infinity or NaN of B there makes NaN in it; padded rows only meet their own.
    """

    name = "csr_spmm"
    summary = "CSR SpMM in 1-D tiles with subwarps, vector loads and row swizzle"
    source = "Gale, Zaharia, Young, Elsen: Sparse GPU Kernels for Deep Learning, SC 2020, section V"
    size_names = ("m", "k", "n")
    packed_names = ("row_order", "row_offsets", "column_indices", "values")

    def batch_size_names(self, problem: SpmmProblem) -> tuple[str, ...]:
        return ("stored",) if problem.value_sets > 1 else ()

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)

    def constraints(
        self, problem: SpmmProblem, config: CsrSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, itemsize = config, problem.dtype.itemsize
        threads = c.threads_per_row * c.row_splits * c.rows_per_block
        yield Constraint(
            threads % 32 == 0 and threads <= 1024,
            f"threads_per_row · row_splits · rows_per_block ({threads}) is a multiple of 32, at most 1024",
        )
        yield Constraint(
            c.tile_n % (c.threads_per_row * c.dense_vector_width) == 0,
            f"threads_per_row · dense_vector_width ({c.threads_per_row * c.dense_vector_width}) divides "
            f"tile_n ({c.tile_n})",
        )
        yield Constraint(
            c.tile_n // c.threads_per_row <= 32,
            f"a thread keeps tile_n / threads_per_row ({c.tile_n // c.threads_per_row}) sums, at most 32",
        )
        yield allowed_registers_fit(c.registers, threads)
        sums = c.tile_n // c.threads_per_row
        yield Constraint(sums + 16 <= c.registers, f"registers ({c.registers}) hold {sums} sums and 16 more")
        yield Constraint(
            c.tile_k % c.sparse_vector_width == 0,
            f"sparse_vector_width ({c.sparse_vector_width}) divides tile_k ({c.tile_k})",
        )
        yield Constraint(
            c.dense_vector_width * itemsize <= 16,
            f"dense_vector_width ({c.dense_vector_width}) elements are at most 16 bytes",
        )
        if problem.layout is Layout.ROW:
            yield Constraint(
                problem.n % c.dense_vector_width == 0,
                f"dense_vector_width ({c.dense_vector_width}) divides n ({problem.n}), so that rows of B are aligned",
            )
        else:
            yield Constraint(
                c.dense_vector_width == 1,
                "dense_vector_width is 1 where B is column-major: a row is not contiguous",
            )
            yield Constraint(not c.prescale_indices, "prescale_indices is off where B is column-major")
        yield Constraint(
            not c.prescale_indices or c.index_bits == 32, "prescale_indices needs index_bits = 32"
        )
        yield Constraint(
            not (c.prescale_indices and self._is_wide(problem)),
            f"prescale_indices needs a B ({problem.k * problem.n * itemsize} bytes) below 4 GiB",
        )
        yield indices_fit(c.index_bits, problem.k)
        yield Constraint(
            c.staging != "shared_async" or c.sparse_vector_width * min(itemsize, c.index_bits // 8) >= 4,
            "shared_async copies at least 4 bytes of indices and of values at once",
        )
        yield Constraint(
            c.row_alignment == "padded" or c.sparse_vector_width > 1,
            "reverse_offset aligns vector loads: sparse_vector_width is above 1",
        )
        shared = self._static_shared_bytes(problem, c)
        yield Constraint(shared <= 48 * 1024, f"static shared memory ({shared} bytes) is at most 48 KiB")
        yield tiles_in_grid("n / tile_n", problem.n, c.tile_n)

    @staticmethod
    def _is_wide(problem: SpmmProblem) -> bool:
        return problem.k * (problem.n + MARGIN) * problem.dtype.itemsize >= 1 << 32

    @staticmethod
    def _static_shared_bytes(problem: SpmmProblem, c: CsrSpmmConfig) -> int:
        subwarps = c.row_splits * c.rows_per_block
        stages = {"shared": 1, "shared_async": 2}[c.staging]
        strips = subwarps * stages * c.tile_k * (c.index_bits // 8 + problem.dtype.itemsize)
        sums = 4 * subwarps * c.tile_n if c.row_splits > 1 else 0
        return strips + sums

    def is_worth_trying(self, problem: SpmmProblem, config: CsrSpmmConfig, device: Device) -> bool:
        """True for blocks of 256 threads (128 with 64 registers), the widest loads of B or half of these, and few
        vectors a thread. It rests on sampled configs timed on an H100 (docs/notes/gather-kernels.md).
        """
        c = config
        threads = c.threads_per_row * c.row_splits * c.rows_per_block
        # Columns of a column-major B do not follow one another.
        widest = widest_vector(problem.n, problem.dtype) if problem.layout is Layout.ROW else 1
        if problem.layout is Layout.COLUMN and (
            c.tile_n > 32 or c.tile_k > 8 or c.staging != self.config_type.staging
        ):
            return False  # strided loads: `panel_spmm` does better, a few configs are enough
        vectors = c.tile_n // (c.threads_per_row * c.dense_vector_width)
        return (
            threads == (128 if c.registers == 64 else 256)
            and c.dense_vector_width in (widest, widest // 2)
            and vectors <= (2 if widest > 1 else 4)
            and c.tile_n <= max(16, 2 * problem.n)
            and c.prescale_indices == (c.index_bits == 32 and problem.layout is Layout.ROW)
        )

    def skips_zeros(self, problem: SpmmProblem, config: CsrSpmmConfig) -> bool:
        return config.row_alignment != "reverse_offset"

    def constants(self, problem: SpmmProblem, config: CsrSpmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "wide": self._is_wide(problem),
            "columns_divide": problem.n % config.tile_n == 0,
            "rows_divide": problem.m % config.rows_per_block == 0,
            **batch_constants(problem),
        }

    def pack(self, problem: SpmmProblem, config: CsrSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        width = config.sparse_vector_width
        rows = align_rows(matrix, width if config.row_alignment == "padded" else 1, tail=width)
        indices: Array = rows.gather_repeating(matrix.column_indices)
        if config.prescale_indices:
            indices = (indices.astype(np.int64) * (problem.n * problem.dtype.itemsize)).astype(np.uint32)
        index_type = np.uint16 if config.index_bits == 16 else np.uint32
        return Packed(
            arrays={
                "row_order": empty_as_one(
                    order_rows(np.diff(matrix.row_offsets), config.row_order, config.rows_per_block)
                ),
                "row_offsets": rows.offsets,
                "column_indices": indices.astype(index_type),
                "values": stored_values(matrix, rows.source, problem.dtype),
            },
            sizes={"stored": rows.source.size} if problem.value_sets > 1 else {},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: rows.source,
        )

    def launch(
        self, problem: SpmmProblem, config: CsrSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        return Launch(
            grid=(ceil_div(problem.m, c.rows_per_block), ceil_div(problem.n, c.tile_n), problem.batch),
            block=(c.threads_per_row * c.row_splits * c.rows_per_block, 1, 1),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: CsrSpmmConfig, device: Device
    ) -> float:
        if problem.layout is Layout.COLUMN:
            return self._strided_us(problem, features, config, device)
        c, rates = config, device.expected_rates
        itemsize, costs = problem.dtype.itemsize, COSTS[problem.dtype]
        tiles = ceil_div(problem.n, c.tile_n)
        blocks, resident = self._blocks(problem, c, device)
        turns = ceil_div(blocks, resident * device.multiprocessors)
        products, rows = features.nnz * tiles * c.tile_n, problem.m * tiles * c.row_splits
        idle = idle_share(blocks, device)
        lines = features.nnz * tiles * max(1.0, c.tile_n * itemsize / LINE_BYTES)
        narrow = 1 / c.dense_vector_width - itemsize / LOAD_BYTES
        product = costs.product + idle * costs.idle + max(0.0, narrow) * costs.narrow
        cycles = products * product + lines * costs.line + rows * costs.row
        if c.row_splits > 1:
            cycles += rows * c.tile_n * costs.sum
        read = costs.a * features.nnz * tiles * (itemsize + c.index_bits // 8)
        far = missing_share(problem.k * c.tile_n * itemsize, LARGE_TILE_BYTES)
        if far > 0:
            together = min(resident * c.rows_per_block, problem.m * tiles / device.multiprocessors)
            shared_by = max(
                1e-3, together * features.density
            )  # in the mean: rows that want the same row of B
            read += costs.far * far * products * itemsize * -math.expm1(-shared_by) / shared_by
        moved = costs.b * min(problem.k, features.nnz) + costs.c * problem.m
        # A nonzero on its way waits for what the one before loaded.
        columns = c.tile_n // c.threads_per_row
        held = columns + min(UNROLLED, c.tile_k) * columns * itemsize // 4 + ADDRESS_REGISTERS
        nonzero = FAR_NONZERO_CYCLES if problem.k > MANY_ROWS else costs.nonzero
        nonzero += costs.shared if c.staging == "shared" else 0.0
        nonzero += costs.crowded * lacking_share(held, c.registers)
        chain = max(features.row_max, turns * features.row_mean) * nonzero + features.row_max * costs.longest
        return (
            rates.launch_us
            + costs.start_us
            + problem.batch * work_us(cycles, read, moved * problem.n * itemsize, device)
            + divided_sectors_us(problem.batch * problem.m, problem.n * itemsize, tiles, device)
            + (chain / c.row_splits + turns * costs.turn) / rates.clock_mhz
        )

    def _blocks(self, problem: SpmmProblem, config: CsrSpmmConfig, device: Device) -> tuple[int, int]:
        """The blocks of all batch elements, and how many a multiprocessor holds at once."""
        c = config
        blocks = problem.batch * ceil_div(problem.n, c.tile_n) * ceil_div(problem.m, c.rows_per_block)
        threads = c.threads_per_row * c.row_splits * c.rows_per_block
        return blocks, resident_blocks(threads, c.registers, self._static_shared_bytes(problem, c), device)

    def _strided_us(
        self, problem: SpmmProblem, features: Features, config: CsrSpmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        tiles = ceil_div(problem.n, c.tile_n)
        cycles = features.nnz * problem.n * c.threads_per_row / WARP * STRIDED_LINE_CYCLES
        if c.row_splits > 1:
            cycles += problem.m * tiles * c.tile_n * c.row_splits * STRIDED_SUM_CYCLES
        read = STRIDED_LOADS_OF_A * features.nnz * tiles * (problem.dtype.itemsize + c.index_bits // 8)
        # Rows that follow one another on their threads, or the longest one, which blocks do not share.
        blocks, resident = self._blocks(problem, c, device)
        turns = ceil_div(blocks, resident * device.multiprocessors)
        nonzero = STRIDED_FAR_NONZERO_CYCLES if problem.k > MANY_ROWS else STRIDED_NONZERO_CYCLES
        longest = max(features.row_max * STRIDED_LONE_NONZERO_CYCLES, turns * features.row_mean * nonzero)
        return (
            rates.launch_us
            + STRIDED_START_US
            + problem.batch * work_us(cycles, read, 0.0, device)
            + longest / c.row_splits / rates.clock_mhz
        )

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> CsrSpmmConfig:
        """The tile and the splits that should be fastest."""
        configs = self._strided(problem) if problem.layout is Layout.COLUMN else self._row_major(problem)
        return self.fastest(problem, features, configs, device)

    def _row_major(self, problem: SpmmProblem) -> Iterator[CsrSpmmConfig]:
        """Blocks of 128 threads, each with a vector of B in hand: other tunables make a difference of 1 %."""
        widest = widest_vector(problem.n, problem.dtype)
        vectors = (widest, widest // 2) if widest == 8 else (min(4, widest),)
        has_short_indices = indices_fit(16, problem.k).holds
        for vector, tile_n, row_splits in itertools.product(vectors, (8, 16, 32, 64, 128), (1, 2, 4, 8)):
            threads_per_row = min(32, tile_n // vector)
            if threads_per_row < 2 or (tile_n > 8 and tile_n >= 2 * problem.n):
                continue
            yield CsrSpmmConfig(
                tile_n=tile_n,
                threads_per_row=threads_per_row,
                rows_per_block=max(1, 128 // (threads_per_row * row_splits)),
                row_splits=row_splits,
                dense_vector_width=vector,
                prescale_indices=not has_short_indices and not self._is_wide(problem),
                index_bits=16 if has_short_indices else 32,
            )

    def published(self, problem: SpmmProblem) -> tuple[CsrSpmmConfig, ...]:
        """The rule of section VII with all optimizations of section V, for a row-major B (section IV-C).

        Tiles have n columns, rounded up to a power of two, at most 64; loads are the widest possible ones. 16-bit
        elements have 16-bit indices, which are not prescaled (V-D3). The paper leaves open strips of 32 nonzeros and
        blocks of one warp with subwarps of 8 threads for vectors of 4, 16 for 2, 32 for 1: so in the authors' code.
        """
        if problem.layout is Layout.COLUMN:
            return ()
        tile_n = min(64, max(8, 1 << (problem.n - 1).bit_length()))
        vector = min(widest_vector(problem.n, problem.dtype), tile_n // 2)
        threads_per_row = min(32 // min(vector, 4), tile_n // vector)
        is_short = problem.dtype.itemsize == 2 and indices_fit(16, problem.k).holds
        published = CsrSpmmConfig(
            tile_n=tile_n,
            tile_k=32,
            rows_per_block=32 // threads_per_row,
            threads_per_row=threads_per_row,
            dense_vector_width=vector,
            sparse_vector_width=4,
            row_alignment="reverse_offset",
            row_order="sorted",
            prescale_indices=problem.dtype is DType.FLOAT32 and not self._is_wide(problem),
            residue_unroll=True,
            staging="shared",
            index_bits=16 if is_short else 32,
        )
        return (published,)

    @staticmethod
    def _strided(problem: SpmmProblem) -> Iterator[CsrSpmmConfig]:
        for tile_n, row_splits in itertools.product((8, 16, 32, 64), (1, 2, 4, 8)):
            if tile_n == 8 or tile_n < 2 * problem.n:
                threads_per_row = tile_n // 2
                yield CsrSpmmConfig(
                    tile_n=tile_n,
                    threads_per_row=threads_per_row,
                    rows_per_block=max(1, 128 // (threads_per_row * row_splits)),
                    row_splits=row_splits,
                    dense_vector_width=1,
                    prescale_indices=False,
                    index_bits=32,
                )


FAMILY = CsrSpmm()
