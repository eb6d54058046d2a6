"""Uniform sparsity with vector loads along m, and beyond the paper: B staged, register tiles over n, HYB."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.ell import (
    ell_sources,
    filled_rows,
    gather_repeating,
    interleave_classes,
    padding_requirement,
    places_in_rows,
)
from sparsegen.kernels.layouts.limits import (
    allowed_registers_fit,
    lacking_share,
    resident_blocks,
    tiles_in_grid,
)
from sparsegen.kernels.layouts.loads import SECTOR, indices_fit
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.spmm.gather_time import column_store_cycles, lone_store_cycles
from sparsegen.kernels.spmm.uspmm_vec_config import UspmmVecConfig, gathered, halved, tiled
from sparsegen.kernels.spmm.uspmm_vec_costs import COSTS
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

UNIT_BYTES = 16  # bytes of one load of B
BANK_BYTES = 128  # shared memory's 32 banks of 4 bytes
BANK_UNITS = BANK_BYTES // UNIT_BYTES
QUARTILE = 0.75
ABOVE_MEAN = 0.67  # standard deviations, of what three quarters of normally distributed lengths stay below
WITH_REST = 1 - QUARTILE  # fraction of the rows that have a rest, if ELL is that wide
STRIDED_PRODUCT_CYCLES = 0.11  # cycles of an element of a column-major B that is gathered
ADDRESS_REGISTERS, GATHERING_REGISTERS = 18, 24  # registers of a thread besides sums and loads
MOST_VARIATION = 1.0  # row-length CoV up to which ELL with a rest is tried


class UspmmVec(Family[SpmmProblem, UspmmVecConfig]):
    """Slices of ELL, column-major within, stream past a tile of B; sums over n stay in registers.

    A row without nonzeros multiplies zeros with row 0 of B, so that an infinity or NaN there makes NaN in it.
    """

    name = "uspmm_vec"
    summary = (
        "ELL SpMM for uniform sparsity: vectors along m, B in shared memory, rows past the ELL width as CSR"
    )
    source = (
        "Muralidharan: Uniform Sparsity in Deep Neural Networks, MLSys 2023, the USpMM-Vec kernel and its outlook; "
        "the HYB split of Bell and Garland, SC 2009, section 3.4"
    )
    size_names = ("m", "k", "n", "steps")
    packed_names = ("values", "indices", "rest_offsets", "filled")
    packing_version = 2

    def published(self, problem: SpmmProblem) -> tuple[UspmmVecConfig, ...]:
        """vecSize 2, B gathered, and (N_warp, V_size) = (1, 8) of section 4.1 of the paper, (2, 8) of section 4.3."""
        paper = UspmmVecConfig(
            tile_n=8,
            threads_per_row=1,
            vec_size=2,
            step=1,
            k_splits=8,
            row_warps=1,
            staging="gather",
            ell_width="longest",
            index_bits=32,
        )
        return paper, replace(paper, k_splits=16)

    def requirements(
        self, problem: SpmmProblem, features: Features, config: UspmmVecConfig
    ) -> Iterator[Constraint]:
        if config.ell_width == "longest":
            yield padding_requirement(features)
            return
        yield Constraint(
            features.row_cov <= MOST_VARIATION,
            f"the rows' lengths vary (CoV {features.row_cov:.2f}) by at most {MOST_VARIATION}",
        )
        yield Constraint(
            features.row_max > features.row_mean,
            f"ell_width = quartile needs rows longer ({features.row_max}) than the mean ({features.row_mean:.1f})",
        )

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield one_batch_element(problem)

    def constraints(
        self, problem: SpmmProblem, config: UspmmVecConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        chunks = c.tile_n // self._chunk(problem)
        yield Constraint(
            chunks >= 1 and chunks % c.threads_per_row == 0,
            f"threads_per_row ({c.threads_per_row}) divides the {chunks} 16-byte chunks of tile_n",
        )
        loaded = c.step * c.vec_size
        yield Constraint(loaded <= 16, f"a load has step · vec_size ({loaded}) nonzeros, at most 16")
        narrowest = loaded * min(problem.dtype.itemsize, c.index_bits // 8)
        yield Constraint(
            narrowest >= 4, f"a load of step · vec_size ({loaded}) values or indices has at least 4 bytes"
        )
        sums = self._sums(c)
        yield Constraint(sums <= 64, f"a thread keeps {sums} sums, at most 64")
        needed = sums + loaded * (problem.dtype.itemsize + c.index_bits // 8) // 2 + 16
        if c.ell_width != "longest":
            needed += sums // c.vec_size  # registers for the rest of a row
        yield Constraint(
            needed <= c.registers,
            f"registers ({c.registers}) hold {sums} sums, two loads of A, the sums of a rest and 16 more ({needed})",
        )
        threads = WARP * c.k_splits * c.row_warps
        yield Constraint(threads <= 1024, f"32 · k_splits · row_warps ({threads}) threads are at most 1024")
        yield allowed_registers_fit(c.registers, threads)
        yield indices_fit(c.index_bits, problem.k)
        shared = self._shared_bytes(problem, c)
        yield Constraint(
            shared <= device.shared_memory_per_block,
            f"B's tile and the partial sums ({shared} bytes) fit a block's shared memory "
            f"({device.shared_memory_per_block} bytes)",
        )
        yield tiles_in_grid("n / tile_n", problem.n, c.tile_n)

    @staticmethod
    def _chunk(problem: SpmmProblem) -> int:
        """Elements of B per load."""
        return UNIT_BYTES // problem.dtype.itemsize

    @staticmethod
    def _slice_rows(config: UspmmVecConfig) -> int:
        """Rows of a warp."""
        return WARP // config.threads_per_row * config.vec_size

    @staticmethod
    def _sums(config: UspmmVecConfig) -> int:
        """Elements of C that a thread sums up."""
        return config.tile_n // config.threads_per_row * config.vec_size

    def _shared_bytes(self, problem: SpmmProblem, config: UspmmVecConfig) -> int:
        c = config
        chunk = self._chunk(problem)
        units = self._place(problem.k, c.tile_n, chunk) if c.staging == "shared" else 0
        partial_sums = 4 * WARP * c.k_splits * c.row_warps * self._sums(c) if c.k_splits > 1 else 0
        return units * UNIT_BYTES + partial_sums

    @staticmethod
    def _place(row: Any, tile_n: int, chunk: int) -> Any:
        """Position in its tile, in units, of a row of B (or of each of an array): `place_of` of the template."""
        return row * (tile_n // chunk) + row // chunk

    def _resident_blocks(self, problem: SpmmProblem, config: UspmmVecConfig, device: Device) -> int:
        """Blocks that a multiprocessor holds at once."""
        threads = WARP * config.k_splits * config.row_warps
        return resident_blocks(threads, config.registers, self._shared_bytes(problem, config), device)

    def is_worth_trying(self, problem: SpmmProblem, config: UspmmVecConfig, device: Device) -> bool:
        """True for loads of 16 bytes, 8 to 64 sums a thread, and blocks that give a multiprocessor 16 warps or more. It
        rests on arithmetic about waves, registers and shared memory; docs/notes/uniform.md has times of configs that it
        keeps.
        """
        c = config
        sums, warps = self._sums(c), c.k_splits * c.row_warps
        # 16 bytes of values per load, and registers for the loads in flight.
        if c.step * c.vec_size != 16 // problem.dtype.itemsize or c.registers != (64 if sums <= 16 else 128):
            return False
        if not 8 <= sums <= 64 or c.tile_n >= max(16, 2 * problem.n):
            return False
        # Rows and columns of C give this many warps. If those do not fill the device, places are split and tiles are
        # narrow; where they more than fill it, nothing is split and tiles are as wide as they fit.
        tasks = ceil_div(problem.m, self._slice_rows(c)) * ceil_div(problem.n, c.tile_n)
        enough = 8 * device.multiprocessors
        row_bytes = c.tile_n * problem.dtype.itemsize
        if tasks * c.k_splits < enough // 2 and (row_bytes > 32 or c.k_splits == 1):
            return False
        if (c.k_splits > 1 or sums < 16) and tasks * c.k_splits > 4 * enough:
            return False
        if sums == 64 and tasks < enough:
            return False
        whole = replace(c, k_splits=1, staging="shared")
        wider = self._place(problem.k, 2 * c.tile_n, self._chunk(problem)) * UNIT_BYTES
        if row_bytes < BANK_BYTES and wider <= device.shared_memory_per_block // 2 and tasks > 4 * enough:
            return False
        # Gathering from global memory is for tiles that do not fit, and for a B that the L1 cache holds. Where B is
        # column-major it takes a load for each element: the narrowest tile is better.
        by_row = problem.layout is Layout.ROW
        staged = whole if by_row else replace(whole, tile_n=8, threads_per_row=1)
        fits = self._shared_bytes(problem, staged) <= device.shared_memory_per_block
        if c.staging == "gather" and fits and not (by_row and problem.k * problem.n <= 1 << 18):
            return False
        # At least 16 warps on a multiprocessor, in small blocks where several of them fit.
        if not (4 if tasks < enough else 8) <= warps <= 32:
            return False
        if self._resident_blocks(problem, c, device) * warps < 16:
            return False
        return warps < 32 or self._resident_blocks(problem, halved(c), device) == 1

    def constants(self, problem: SpmmProblem, config: UspmmVecConfig) -> Mapping[str, Value]:
        by_row = problem.layout is Layout.ROW
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "columns_divide": problem.n % config.tile_n == 0,
            "aligned": self._is_aligned(problem),
            "rows_aligned": by_row or problem.m % config.vec_size == 0,
        }

    def pack(self, problem: SpmmProblem, config: UspmmVecConfig, matrix: CsrMatrix) -> Packed[Array]:
        c = config
        lengths = np.diff(matrix.row_offsets).astype(np.int64)
        width = self._ell_width(c, lengths)
        indices = self._stored_indices(problem, c, matrix.column_indices)
        places = self._places(c, matrix, indices)
        steps = ceil_div(width, c.step)
        slice_rows = self._slice_rows(c)
        slices = ceil_div(problem.m, slice_rows)
        by_row = ell_sources(matrix, slices * slice_rows, steps * c.step, places)
        # A load's elements are neighbours: by slice, step, thread of the slice, place of the step, row of the thread.
        shape = (slices, slice_rows // c.vec_size, c.vec_size, steps, c.step)
        ell, ell_indices = (
            a.reshape(shape).transpose(0, 3, 1, 4, 2).ravel()
            for a in (by_row, gather_repeating(matrix, indices, by_row))
        )
        rest = np.flatnonzero(places >= steps * c.step).astype(np.int32)
        rest_lengths = np.maximum(lengths - steps * c.step, 0) if c.ell_width != "longest" else lengths[:0]
        source = empty_as_padding(np.concatenate([ell, rest]))
        all_indices = np.concatenate([ell_indices, indices[rest], np.zeros(1, np.int32)])[: source.size]
        return Packed(
            arrays={
                "values": stored_values(matrix, source, problem.dtype),
                "indices": all_indices.astype(np.uint16 if c.index_bits == 16 else np.uint32),
                "rest_offsets": (ell.size + np.concatenate([[0], np.cumsum(rest_lengths)])).astype(np.int32),
                "filled": filled_rows(matrix, slices * slice_rows),
            },
            sizes={"steps": steps},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
        )

    @staticmethod
    def _ell_width(config: UspmmVecConfig, lengths: Array) -> int:
        if lengths.size == 0:
            return 0
        if config.ell_width == "longest":
            return int(lengths.max())
        return int(np.quantile(lengths, QUARTILE, method="lower"))

    def _stored_indices(self, problem: SpmmProblem, config: UspmmVecConfig, columns: Array) -> Array:
        """Indices of B's rows as the kernel needs them, int32: row numbers, or positions in the tile in shared
        memory.
        """
        if config.staging == "gather":
            return columns
        placed: Array = self._place(columns, config.tile_n, self._chunk(problem))
        return placed

    @staticmethod
    def _places(config: UspmmVecConfig, matrix: CsrMatrix, indices: Array) -> Array:
        """The place of each nonzero in its row.

        Where a set of threads reads less than the 128 bytes of a bank cycle, neighbouring sets read neighbouring
        banks at each place, as far as their nonzeros allow.
        """
        if config.staging == "gather" or config.threads_per_row >= BANK_UNITS or matrix.nnz == 0:
            return places_in_rows(matrix)
        sets = np.arange(matrix.shape[0]) // config.vec_size
        shifts = sets * config.threads_per_row
        return interleave_classes(matrix.row_offsets, indices % BANK_UNITS, BANK_UNITS, shifts)

    def launch(
        self, problem: SpmmProblem, config: UspmmVecConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        columns = ceil_div(problem.n, c.tile_n)
        blocks = ceil_div(problem.m, self._slice_rows(c) * c.row_warps)
        if c.staging == "shared" and blocks:
            # A persistent kernel: as many blocks as are resident at once. Each loads its tile once.
            slots = self._resident_blocks(problem, c, device) * device.multiprocessors
            turns = ceil_div(blocks, max(1, slots // columns))
            blocks = ceil_div(blocks, turns)
        return Launch(
            grid=(blocks, columns, 1),
            block=(WARP * c.k_splits * c.row_warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, c),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: UspmmVecConfig, device: Device
    ) -> float:
        c, rates, itemsize = config, device.expected_rates, problem.dtype.itemsize
        costs, is_staged, has_rest = COSTS[problem.dtype], c.staging == "shared", c.ell_width == "quartile"
        width = float(features.row_max)
        if has_rest:
            width = min(width, features.row_mean * (1 + ABOVE_MEAN * features.row_cov))
        warps, sets, sums = c.k_splits * c.row_warps, WARP // c.threads_per_row, c.tile_n // c.threads_per_row
        rows = sets * c.vec_size * c.row_warps
        columns, row_blocks, turns = ceil_div(problem.n, c.tile_n), ceil_div(problem.m, rows), 1
        slots = self._resident_blocks(problem, c, device) * device.multiprocessors
        if is_staged:
            turns = max(1, ceil_div(row_blocks, max(1, slots // columns)))
            row_blocks = ceil_div(row_blocks, turns)
        blocks = max(1, row_blocks * columns)
        rounds, each = ceil_div(blocks, slots), ceil_div(blocks, device.multiprocessors)
        # The rows of tiles of the multiprocessor that has most, the products of each, and a warp's steps.
        most = each * min(problem.m / max(1, row_blocks), turns * rows)
        products = most * c.tile_n * width
        steps = rounds * turns * width / (c.k_splits * c.step)
        cycles = products * costs.product
        is_aligned = self._is_aligned(problem)
        if is_staged:
            byte = costs.byte + (0.0 if is_aligned else costs.unaligned_byte)
            cycles += steps * costs.step + rounds * problem.k * c.tile_n * itemsize / warps * byte
        else:
            cycles += steps * costs.gathered_step
            if problem.layout is Layout.ROW:
                cycles += products / (c.threads_per_row * self._chunk(problem)) * costs.line
            else:
                cycles += products * STRIDED_PRODUCT_CYCLES
            if not is_aligned:
                cycles += products * costs.unaligned
        if problem.layout is Layout.ROW and not is_aligned:
            cycles += lone_store_cycles(most * problem.n / columns, c.threads_per_row)
        if problem.layout is Layout.COLUMN:
            stored, of_warp = most * problem.n / columns, sets * c.vec_size
            is_whole = problem.m % min(of_warp, SECTOR // itemsize) == 0
            cycles += column_store_cycles(stored, of_warp, itemsize, is_aligned=is_whole)
        if c.k_splits > 1:
            cycles += most * c.tile_n * c.k_splits * costs.sum
        if has_rest:
            rest_rows = rounds * turns * sets * c.vec_size * WITH_REST
            handed_on = WARP * sums * math.log2(sets) * c.k_splits
            cycles += (features.row_max - width) / (sets * c.k_splits) * costs.rest
            cycles += rest_rows * costs.rest_row + most * WITH_REST * handed_on * costs.rest_sum
            steps += rest_rows
        cycles += steps * self._lack_of_registers(problem, c) * costs.spilling
        places = problem.m * width
        read = places * (itemsize + c.index_bits / 8)
        moved = read + (problem.k + problem.m) * problem.n * itemsize
        return (
            rates.launch_us
            + costs.start_us
            + cycles / rates.clock_mhz
            + costs.move * moved / rates.copy_bytes_per_us
            + costs.a * read * columns / device.l2_bytes_per_us
        )

    def _is_aligned(self, problem: SpmmProblem) -> bool:
        """True if rows of B, or columns of a column-major one, begin at whole chunks."""
        contiguous = problem.n if problem.layout is Layout.ROW else problem.k
        return contiguous % self._chunk(problem) == 0

    @staticmethod
    def _lack_of_registers(problem: SpmmProblem, config: UspmmVecConfig) -> float:
        """Fraction of its registers that a thread should need in addition: for sums, two loads of A, one of B,
        addresses.
        """
        c, itemsize = config, problem.dtype.itemsize
        sums = c.tile_n // c.threads_per_row
        held = sums * c.vec_size + (sums if c.ell_width == "quartile" else 0)
        held += 2 * c.step * c.vec_size * (itemsize + c.index_bits // 8) // 4 + sums * itemsize // 4
        held += ADDRESS_REGISTERS if c.staging == "shared" else GATHERING_REGISTERS
        return lacking_share(held, c.registers)

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> UspmmVecConfig:
        """The tile and the splits that should be fastest; gathered is what fits no shared memory."""
        return self.fastest_valid(problem, features, self._likely(problem, features), device)

    def _likely(self, problem: SpmmProblem, features: Features) -> tuple[UspmmVecConfig, ...]:
        usual = UspmmVecConfig(
            vec_size=1,
            step=16 // problem.dtype.itemsize,
            index_bits=16 if problem.k <= 1 << 16 else 32,
            ell_width="longest" if padding_requirement(features).holds else "quartile",
        )
        likely = tiled(usual, problem.n)
        if problem.layout is Layout.ROW:
            likely += gathered(usual, problem.n)
        return likely


FAMILY = UspmmVec()
