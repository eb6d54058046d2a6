"""SpMM of any weight of 8- or 4-bit codes: a subwarp for each row, which reads B's elements for each nonzero."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import enough_registers, resident_blocks, tiles_in_grid
from sparsegen.kernels.layouts.loads import LINE_BYTES, SHORT_INDICES, indices_fit
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, QuantizedSpmmProblem, ScaleGroup, Symmetry
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

# Not fitted: this long a start leaves weights that suit `quantized_stream_spmm` to it until a search has timed both.
START_US = 6.0
# Estimates: cycles of a multiprocessor for a warp's load of B by the lines that it meets, for the products of a warp's
# nonzero and to find a nonzero's number; and those that a thread waits for its next nonzeros and what they need of B.
LINE_CYCLES, PRODUCT_CYCLES, NONZERO_CYCLES = 1.08, 1.5, 8.0
WAITED_CYCLES = 1400.0
ROW_CYCLES = 40.0  # of a multiprocessor for a warp's rows, and for each sum that its threads add up
SUM_CYCLES = 6.0


@dataclass(frozen=True)
class QuantizedCsrConfig(Config):
    """One point of the tuning space of `QuantizedCsrSpmm`."""

    threads_per_row: int = tunable(32, (4, 8, 16, 32), "threads of a subwarp")
    lanes: int = tunable(
        1,
        (1, 2, 4, 8, 16, 32),
        "threads of a row side by side along the columns of C; the others share its nonzeros",
    )
    columns: int = tunable(4, (1, 2, 4, 8), "columns of C per thread")
    ahead: int = tunable(4, (2, 4, 8), "nonzeros of a thread whose elements of B are loaded together")
    warps: int = tunable(4, (2, 4, 8), "warps per block", searched=(4, 8))
    index_bits: int = tunable(32, (16, 32), "bits of a stored column index", packs=True)


class QuantizedCsrSpmm(Family[QuantizedSpmmProblem, QuantizedCsrConfig]):
    """Any density, layout, element type and number of columns: what families for decoding leave out.

    Sums are float32; each nonzero's number is multiplied by the scale of its group, or a row's sum by the row's. Zeros
    of A are not multiplied: an infinity or NaN of B reaches only rows that have a nonzero there.
    """

    name = "quantized_csr_spmm"
    summary = "CSR SpMM of codes of 8 or 4 bits: any density, layout and number of columns"
    source = (
        "subwarps that share a row: Bell, Garland: Implementing Sparse Matrix-Vector Multiplication on Throughput-"
        "Oriented Processors, SC 2009, section 4.3; codes in the place of values are sparsegen's own"
    )
    size_names = ("m", "k", "n")
    packed_names = ("row_offsets", "column_indices", "codes")

    def scope(self, problem: QuantizedSpmmProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)

    def constraints(
        self, problem: QuantizedSpmmProblem, config: QuantizedCsrConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        yield Constraint(
            c.threads_per_row % c.lanes == 0,
            f"lanes ({c.lanes}) divide threads_per_row ({c.threads_per_row})",
        )
        yield enough_registers(_registers(problem, c), WARP * c.warps, at_a_time=8)
        yield indices_fit(c.index_bits, problem.k)
        yield tiles_in_grid("n / (lanes · columns)", problem.n, c.lanes * c.columns)

    def is_worth_trying(
        self, problem: QuantizedSpmmProblem, config: QuantizedCsrConfig, device: Device
    ) -> bool:
        """True for the narrowest indices, tiles less than twice as wide as C, and few lanes beside a column-major B:
        each lane reads lines of its own.
        """
        c = config
        return (
            c.index_bits == _index_bits(problem)
            and (c.lanes * c.columns == 1 or c.lanes * c.columns < 2 * problem.n)
            and (problem.layout is Layout.ROW or c.lanes <= 2)
        )

    def constants(self, problem: QuantizedSpmmProblem, config: QuantizedCsrConfig) -> Mapping[str, Value]:
        by_row = problem.scale_group is ScaleGroup.ROW
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "value_type": problem.value_type.value,
            "asymmetric": problem.symmetry is Symmetry.ASYMMETRIC,
            "group_columns": 0 if by_row else problem.scale_group.size(problem.k),
            **batch_constants(problem),
        }

    def pack(
        self, problem: QuantizedSpmmProblem, config: QuantizedCsrConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        index_type = np.uint16 if config.index_bits == 16 else np.uint32
        return Packed(
            arrays={
                "row_offsets": matrix.row_offsets.astype(np.int32),
                "column_indices": empty_as_one(matrix.column_indices.astype(index_type)),
                "codes": empty_as_one(problem.value_type.to_stored(matrix.values)),
            },
            sizes={},
            nnz=matrix.nnz,
        )

    def launch(
        self,
        problem: QuantizedSpmmProblem,
        config: QuantizedCsrConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        c = config
        rows, tile = c.warps * WARP // c.threads_per_row, c.lanes * c.columns
        return Launch(
            grid=(ceil_div(problem.m, rows), ceil_div(problem.n, tile), problem.batch),
            block=(WARP * c.warps, 1, 1),
        )

    def analytic_us(
        self, problem: QuantizedSpmmProblem, features: Features, config: QuantizedCsrConfig, device: Device
    ) -> float:
        """Loads of B by their lines and products, or the bytes of A and B; waits of the longest row come on top."""
        p, c, rates = problem, config, device.expected_rates
        tiles, itemsize = ceil_div(p.n, c.lanes * c.columns) * p.batch, p.dtype.itemsize
        shares, of_warp = c.threads_per_row // c.lanes, WARP // c.threads_per_row
        rounds = max(1, ceil_div(features.row_mean, shares)) if features.nnz else 0  # a thread's nonzeros
        row_warps = ceil_div(p.m, of_warp) * tiles
        loads = row_warps * rounds * c.columns
        if p.layout is Layout.ROW:
            lines = WARP // c.lanes * max(1.0, c.lanes * itemsize / LINE_BYTES)
        else:  # a share's neighbours are as far apart as nonzeros, and rows of a warp are elsewhere
            apart = itemsize / max(1e-6, features.density)
            of_share = min(float(shares), max(1.0, shares * apart / LINE_BYTES))
            lines = c.lanes * of_warp * of_share
        cycles = loads * (lines * LINE_CYCLES + PRODUCT_CYCLES) + row_warps * rounds * NONZERO_CYCLES
        added = (shares - 1).bit_length() * c.columns * SUM_CYCLES
        cycles += row_warps * (ROW_CYCLES + added)
        stored = features.nnz * (c.index_bits + p.value_type.bits) / 8
        moved = (stored + p.cost(features.nnz).bytes) / rates.copy_bytes_per_us
        read = (stored * tiles + loads * WARP * itemsize) / device.l2_bytes_per_us
        resident = resident_blocks(WARP * c.warps, _registers(p, c), 0, device)
        places = device.multiprocessors * resident * c.warps
        turns = ceil_div(row_warps, places)
        longest = max(features.row_max, turns * features.row_mean)
        waited = WAITED_CYCLES * (turns + longest / shares / c.ahead) / rates.clock_mhz
        return rates.launch_us + START_US + max(cycles / device.cycles_per_us, read) + moved + waited

    def heuristic(
        self, problem: QuantizedSpmmProblem, features: Features, device: Device
    ) -> QuantizedCsrConfig:
        """The lanes, columns and subwarps that should be fastest."""
        likely = _likely(problem.n, problem.layout, _index_bits(problem))
        return self.fastest_valid(problem, features, likely, device)


@lru_cache(maxsize=256)
def _likely(n: int, layout: Layout, index_bits: int) -> tuple[QuantizedCsrConfig, ...]:
    """Configs of blocks of 4 warps for n columns, and the one that a grid has most columns for."""
    lanes = (1, 2, 4, 8, 16, 32) if layout is Layout.ROW else (1,)
    found = [
        QuantizedCsrConfig(threads, lane, columns, 4 if columns > 2 else 8, 4, index_bits)
        for threads, lane, columns in itertools.product((4, 8, 16, 32), lanes, (1, 2, 4, 8))
        if threads % lane == 0 and (lane * columns == 1 or lane * columns < 2 * n)
    ]
    return (*found, QuantizedCsrConfig(32, 32, 8, 4, 4, index_bits))


def _index_bits(problem: QuantizedSpmmProblem) -> int:
    return 16 if problem.k <= SHORT_INDICES else 32


def _registers(problem: QuantizedSpmmProblem, config: QuantizedCsrConfig) -> int:
    """About how many a thread needs: its sums, what it loads ahead, and 32 more."""
    c = config
    return 32 + c.columns + c.ahead * (1 + max(1, c.columns * problem.dtype.itemsize // 4))


FAMILY = QuantizedCsrSpmm()
