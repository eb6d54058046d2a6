"""SpMM from panels of B in shared memory: what Sputnik gathers through L1 is staged once and read conflict-free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

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
from sparsegen.kernels.layouts.padding import stored_values
from sparsegen.kernels.layouts.rows import align_runs, order_rows
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.gather_time import lone_store_cycles
from sparsegen.kernels.spmm.panel_entries import (
    BANK_BYTES,
    CHUNK_BYTES,
    Reading,
    bank_order,
    entries_by_panel,
)
from sparsegen.kernels.spmm.panel_spmm_costs import (
    COLUMN_MAJOR_COSTS,
    OWN_VALUES_COSTS,
    ROW_MAJOR_COSTS,
    Costs,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.integers import ceil_div, round_up

ADDRESS_REGISTERS = 24  # registers of a thread besides sums and two steps
PHASE = 8  # threads whose 16 bytes shared memory gives at once


@dataclass(frozen=True, eq=False, repr=False)
class PanelSpmmConfig(Config):
    """One point of the tuning space of `PanelSpmm`."""

    tile_n: int = tunable(32, (8, 16, 32, 64, 128), "columns of C per block", packs=True)
    panel_k: int = tunable(
        0,
        (0, 64, 128, 256, 512, 1024),
        "rows of B per panel in shared memory; 0: all of them, and the kernel is persistent",
        searched=(0, 256, 512),
        packs=True,
    )
    stages: int = tunable(
        1,
        (1, 2, 3),
        "pipeline stages: panels in shared memory; the next ones load while one is used",
        searched=(1, 2),
    )
    warps: int = tunable(16, (4, 8, 16, 32), "warps per block", searched=(8, 16, 32))
    threads_per_row: int = tunable(
        8, (1, 2, 4, 8, 16, 32), "threads that share a group of rows", searched=(2, 4, 8, 16, 32), packs=True
    )
    row_splits: int = tunable(
        1, (1, 2, 4, 8), "of them, sets that take every row_splits-th step of nonzeros", packs=True
    )
    rows_per_group: int = tunable(
        1,
        (1, 2, 4),
        "rows that share their loads of B: the union of their columns, zeros filled in",
        packs=True,
    )
    step: int = tunable(4, (2, 4, 8), "nonzero columns per load of A", searched=(4, 8), packs=True)
    registers: int = tunable(
        64, (32, 64, 128), "registers per thread that the compiler may use; more hold more loads in flight",
        searched=(64, 128),
    )  # fmt: skip
    row_order: str = tunable(
        "sorted",
        ("natural", "binned", "sorted", "local"),
        "row swizzle: by falling length, so that a warp's rows are alike (sorted), or neighbouring rows in a warp, the "
        "longest first (binned), so that it writes neighbouring places of a column-major C, or in a block, whose "
        "nonzeros then are in few panels if neighbours are alike (local)",
        searched=("binned", "sorted", "local"),
        packs=True,
    )
    index_bits: int = tunable(
        16, (16, 32), "bits of a stored offset into a panel", searched=(16,), packs=True
    )


# Candidates for a row-major C: they come nearest to the family's best on LSTM and Transformer weights (H100, 34
# workloads).
ROW_MAJOR = tuple(
    PanelSpmmConfig(
        tile_n=n, warps=warps, threads_per_row=threads, row_splits=splits, step=step, registers=held
    )
    for n, warps, threads, splits, step, held in (
        (16, 16, 8, 8, 4, 128),
        (16, 16, 4, 4, 8, 128),
        (16, 16, 2, 2, 4, 128),
        (32, 16, 16, 8, 8, 64),
        (32, 16, 16, 4, 8, 64),
        (32, 16, 4, 2, 8, 128),
        (64, 16, 4, 1, 8, 128),
        (64, 16, 8, 2, 4, 128),
        (64, 32, 4, 1, 4, 64),
        (64, 16, 32, 4, 8, 128),
    )
)
COLUMN_MAJOR = tuple(
    PanelSpmmConfig(
        tile_n=n,
        warps=warps,
        threads_per_row=threads,
        row_splits=8,
        step=step,
        registers=held,
        row_order="binned",
    )
    for n, warps, threads, step, held in (
        (8, 32, 16, 8, 64),
        (8, 32, 8, 4, 64),
        (16, 16, 16, 8, 128),
        (16, 16, 16, 4, 128),
    )
)


class PanelSpmm(Family[SpmmProblem, PanelSpmmConfig]):
    """Blocks keep a panel of B in shared memory and stream rows of A past it.

    Where panels take turns, all warps of a block wait for each, so that its rows should have their nonzeros in the same
    ones. ``row_order = local`` gives it neighbouring rows and skips panels in which none of them has a nonzero.

    Rows of a group (``rows_per_group`` above 1) multiply zeros where only another row has a nonzero, so that an
    infinity or NaN of B there makes NaN in all rows of the group.
    """

    name = "panel_spmm"
    summary = "SpMM from panels of B kept in shared memory, rows of A streamed past them"
    source = "the reuse argument of Gale et al., SC 2020, section V-A, for Hopper's 227 KiB of shared memory per block"
    size_names = ("m", "k", "n", "groups", "panels")
    packed_names = ("row_order", "run_offsets", "offsets", "values")

    def batch_size_names(self, problem: SpmmProblem) -> tuple[str, ...]:
        return ("stored",) if problem.value_sets > 1 else ()

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)

    def constraints(
        self, problem: SpmmProblem, config: PanelSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        chunk = 16 // problem.dtype.itemsize
        yield Constraint(
            c.tile_n % chunk == 0, f"tile_n ({c.tile_n}) is made of whole 16-byte chunks of {chunk} elements"
        )
        yield Constraint(
            c.threads_per_row % c.row_splits == 0,
            f"row_splits ({c.row_splits}) divides threads_per_row ({c.threads_per_row})",
        )
        threads = max(1, c.threads_per_row // c.row_splits)
        chunks = c.tile_n // chunk
        yield Constraint(
            chunks % threads == 0,
            f"threads_per_row / row_splits ({threads}) divides the {chunks} chunks of a tile's row",
        )
        sums = c.tile_n // threads * c.rows_per_group
        yield Constraint(sums <= 64, f"a thread keeps {sums} sums, at most 64")
        yield allowed_registers_fit(c.registers, 32 * c.warps)
        yield Constraint(sums + 24 <= c.registers, f"registers ({c.registers}) hold {sums} sums and 24 more")
        yield Constraint(
            c.panel_k > 0 or c.stages == 1,
            "several stages need several panels: panel_k is not 0 (all of B's rows)",
        )
        yield Constraint(
            c.panel_k < max(1, problem.k),
            f"panel_k ({c.panel_k}) is below k ({problem.k}), else 0 says the same",
        )
        shared = self._shared_bytes(problem, c)
        yield Constraint(
            shared <= device.shared_memory_per_block,
            f"the panels ({shared} bytes) fit a block's shared memory ({device.shared_memory_per_block} bytes)",
        )
        yield tiles_in_grid("n / tile_n", problem.n, c.tile_n)

    @staticmethod
    def _shared_bytes(problem: SpmmProblem, config: PanelSpmmConfig) -> int:
        rows = config.panel_k or max(1, problem.k)
        return config.stages * rows * config.tile_n * problem.dtype.itemsize

    def _resident_blocks(self, problem: SpmmProblem, config: PanelSpmmConfig, device: Device) -> int:
        """Blocks that a multiprocessor holds at once."""
        return resident_blocks(
            32 * config.warps, config.registers, self._shared_bytes(problem, config), device
        )

    def is_worth_trying(self, problem: SpmmProblem, config: PanelSpmmConfig, device: Device) -> bool:
        """True for rows of a panel without bank conflicts, at least 16 warps on a multiprocessor, and 4 to 16 columns a
        thread. It rests on sampled configs timed on an H100 (docs/notes/gather-kernels.md).
        """
        c = config
        if c.threads_per_row < c.row_splits:
            return False
        if c.row_order != "local" and (c.row_order == "binned") == (problem.layout is Layout.ROW):
            return False
        columns = c.tile_n // (c.threads_per_row // c.row_splits)
        if c.tile_n > max(8, 2 * problem.n) or columns not in (4, 8, 16) or columns * c.rows_per_group > 32:
            return False
        if columns == 4 and problem.dtype is not DType.FLOAT32:
            return False
        if c.warps * c.registers < 1024 or self._resident_blocks(problem, c, device) * c.warps < 16:
            return False
        # Rows of 128 bytes are read without bank conflicts; where all of them do not fit, either panels of such
        # rows take turns, or short rows fit whole and a bank-aware order helps.
        bank_row = BANK_BYTES // problem.dtype.itemsize
        whole = replace(c, panel_k=0, stages=1, tile_n=bank_row)
        whole_fits = self._shared_bytes(problem, whole) <= device.shared_memory_per_block
        if c.panel_k == 0:
            short = c.tile_n in (bank_row // 4, bank_row // 2)
            # Warps go their own ways, so that a block's rows need not be alike.
            wide = whole_fits and problem.n >= bank_row
            return c.row_order != "local" and c.warps >= 16 and (c.tile_n >= bank_row if wide else short)
        # Warps wait for each other at every panel; more of them do no harm where their rows are alike.
        together = c.warps <= 16 or c.row_order == "local"
        return c.stages >= 2 and c.tile_n == bank_row and together and not whole_fits

    def skips_zeros(self, problem: SpmmProblem, config: PanelSpmmConfig) -> bool:
        return config.rows_per_group == 1

    def constants(self, problem: SpmmProblem, config: PanelSpmmConfig) -> Mapping[str, Value]:
        chunk = 16 // problem.dtype.itemsize
        contiguous = problem.n if problem.layout is Layout.ROW else problem.k
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "columns_divide": problem.n % config.tile_n == 0,
            "aligned": contiguous % chunk == 0,
            **batch_constants(problem),
        }

    def pack(self, problem: SpmmProblem, config: PanelSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        c, m = config, problem.m
        panel_k = c.panel_k or max(1, problem.k)
        panels = max(1, ceil_div(problem.k, panel_k))
        lengths = np.diff(matrix.row_offsets)
        order = order_rows(lengths, c.row_order, self._rows_per_warp(c))
        groups = ceil_div(m, c.rows_per_group)
        columns, runs, entry_source = entries_by_panel(c.rows_per_group, panel_k, matrix, order, panels)
        banked = bank_order(self._reading(problem, c), columns % panel_k, runs, panels)
        if banked is not None:
            columns, entry_source = columns[banked], entry_source[banked]  # each remains in its run
        run_lengths = np.bincount(runs, minlength=groups * panels)
        run_starts = np.cumsum(run_lengths) - run_lengths
        aligned = align_runs(run_lengths, run_starts, c.step, tail=c.step)
        unit = c.tile_n * problem.dtype.itemsize // (16 if c.index_bits == 16 else 1)
        local = (columns % panel_k) * unit
        with_padding = np.append(entry_source, np.full((1, c.rows_per_group), -1, dtype=np.int32), axis=0)
        value_source = with_padding[aligned.source].ravel()
        padded_order = np.full(groups * c.rows_per_group, -1, dtype=np.int32)
        padded_order[:m] = order
        index_type = np.uint16 if c.index_bits == 16 else np.uint32
        # A batch element's values in columns of groups: within 32-bit offsets, where the number of values may not be.
        stored = {"stored": aligned.source.size} if problem.value_sets > 1 else {}
        return Packed(
            arrays={
                "row_order": empty_as_one(padded_order),
                "run_offsets": aligned.offsets,
                "offsets": aligned.gather_repeating(local).astype(index_type),
                "values": stored_values(matrix, value_source, problem.dtype),
            },
            sizes={"groups": groups, "panels": panels, **stored},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: value_source,
        )

    @staticmethod
    def _reading(problem: SpmmProblem, config: PanelSpmmConfig) -> Reading:
        """Returns the access pattern of a warp's threads to the rows of a panel."""
        row_bytes = config.tile_n * problem.dtype.itemsize
        return Reading(row_bytes, config.threads_per_row, config.row_splits, config.step)

    @staticmethod
    def _rows_per_warp(config: PanelSpmmConfig) -> int:
        return 32 // config.threads_per_row * config.rows_per_group

    def packing_key(self, problem: SpmmProblem, config: PanelSpmmConfig) -> tuple[Value, ...]:
        # The sets of threads shape the order of nonzeros only where rows of a panel share a bank cycle, and the order
        # of rows only where a warp's rows are neighbours.
        key = super().packing_key(problem, config)
        if config.tile_n * problem.dtype.itemsize < BANK_BYTES:
            return key
        without = {"row_splits"} if config.row_order == "binned" else {"row_splits", "threads_per_row"}
        names = [t.name for t in PanelSpmmConfig.tunables() if t.packs]
        return tuple(value for name, value in zip(names, key, strict=True) if name not in without)

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: PanelSpmmConfig
    ) -> Mapping[str, int]:
        return {"groups": ceil_div(problem.m, config.rows_per_group)}

    def launch(
        self, problem: SpmmProblem, config: PanelSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        columns = ceil_div(problem.n, c.tile_n)
        blocks = ceil_div(sizes["groups"], c.warps * (32 // c.threads_per_row))
        if c.panel_k == 0:
            # A persistent kernel: as many blocks of all batch elements as are resident, which load their panel once.
            slots = self._resident_blocks(problem, c, device) * device.multiprocessors
            blocks = min(blocks, max(1, slots // (columns * problem.batch)))
        return Launch(
            grid=(blocks, columns, problem.batch),
            block=(32 * c.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, c),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: PanelSpmmConfig, device: Device
    ) -> float:
        c, rates, itemsize = config, device.expected_rates, problem.dtype.itemsize
        items, tiles, costs = problem.batch, ceil_div(problem.n, c.tile_n), self._costs(problem)
        resident = self._resident_blocks(problem, c, device) * device.multiprocessors
        rows = c.warps * (32 // c.threads_per_row) * c.rows_per_group
        row_blocks = ceil_div(problem.m, rows)
        if c.panel_k == 0:
            row_blocks = min(row_blocks, max(1, resident // (tiles * items)))
        blocks = max(1, items * tiles * row_blocks)
        # In a persistent kernel, a block computes several sets of rows; otherwise it goes through all panels.
        turns = 1 if c.panel_k == 0 else ceil_div(blocks, resident)
        panels = 0 if c.panel_k == 0 else ceil_div(problem.k, c.panel_k)
        rounds = ceil_div(problem.m, max(1, row_blocks * rows))
        longest = turns * max(features.row_max, rounds * features.row_mean) / c.row_splits
        chain = longest * (costs.nonzero + costs.step * self._loads(problem, c) / c.step)
        chain += turns * (rounds * costs.round + panels * costs.panel)
        idle = round_up(blocks, device.multiprocessors) / blocks
        moved = items * (costs.b * problem.k + costs.c * problem.m) * problem.n * itemsize
        moved += costs.a * problem.value_sets * features.nnz * (itemsize + c.index_bits // 8)
        loaded = max(device.multiprocessors, blocks) * problem.k * c.tile_n * itemsize
        contiguous = problem.n if problem.layout is Layout.ROW else problem.k
        is_aligned = contiguous * itemsize % CHUNK_BYTES == 0
        if problem.layout is Layout.ROW and not is_aligned:
            stored = items * problem.m * problem.n / device.multiprocessors
            chain += lone_store_cycles(stored, c.threads_per_row // c.row_splits)
        return (
            rates.launch_us
            + costs.start_us
            + items * tiles * idle * self._tile_cycles(problem, features, c) / device.cycles_per_us
            + chain / rates.clock_mhz
            + moved / rates.copy_bytes_per_us
            + (costs.tile + (0.0 if is_aligned else costs.unaligned)) * loaded / device.l2_bytes_per_us
        )

    @staticmethod
    def _costs(problem: SpmmProblem) -> Costs:
        if problem.layout is Layout.COLUMN:
            return COLUMN_MAJOR_COSTS[problem.dtype]
        return (ROW_MAJOR_COSTS if problem.value_sets == 1 else OWN_VALUES_COSTS)[problem.dtype]

    @staticmethod
    def _step_bytes(problem: SpmmProblem, config: PanelSpmmConfig) -> tuple[int, int]:
        """Bytes of the offsets and of the values that one step of a group loads."""
        c = config
        return c.step * c.index_bits // 8, c.step * c.rows_per_group * problem.dtype.itemsize

    def _loads(self, problem: SpmmProblem, config: PanelSpmmConfig) -> float:
        """Number of loads of A in one step."""
        return sum(max(1.0, nbytes / CHUNK_BYTES) for nbytes in self._step_bytes(problem, config))

    def _tile_cycles(self, problem: SpmmProblem, features: Features, config: PanelSpmmConfig) -> float:
        """Cycles of a multiprocessor for all rows of one tile of columns, if it were alone."""
        c, costs = config, self._costs(problem)
        groups = ceil_div(problem.m, c.rows_per_group)
        warps, threads = groups * c.threads_per_row / 32, c.threads_per_row // c.row_splits
        columns = c.tile_n // threads
        # Columns of a group's rows, as if nonzeros lay anywhere. Its last steps in each panel are half empty.
        entries = problem.k * any_live(min(1.0, features.density), c.rows_per_group)
        panels = 1 if c.panel_k == 0 else min(ceil_div(problem.k, c.panel_k), max(1.0, features.row_mean))
        entries += (c.step * c.row_splits - 1) / 2 * panels
        held = columns * c.rows_per_group + 2 * sum(self._step_bytes(problem, c)) // 4 + ADDRESS_REGISTERS
        spilled = lacking_share(held, c.registers)
        product = costs.product + costs.grouped * (c.rows_per_group - 1)
        product += costs.apart * max(0.0, 1 - threads / PHASE)
        return (1 + costs.spilling * spilled) * (
            groups * entries * c.tile_n * product
            + warps * entries / (c.step * c.row_splits) * self._loads(problem, c) * costs.load
            + warps * columns * c.rows_per_group * math.log2(c.row_splits) * costs.sum
        )

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> PanelSpmmConfig:
        """The config that should be fastest of one that goes by the shared memory that B takes and of some others."""
        by_memory = self._by_memory(problem, device)
        if problem.value_sets > 1:
            return by_memory
        some = COLUMN_MAJOR if problem.layout is Layout.COLUMN else ROW_MAJOR
        likely = (by_memory, *(c for c in some if self.suits(problem, features, c, device)))
        return self.fastest(problem, features, likely, device)

    def _by_memory(self, problem: SpmmProblem, device: Device) -> PanelSpmmConfig:
        itemsize = problem.dtype.itemsize
        chunk = 16 // itemsize
        widest = 32 if problem.dtype is DType.FLOAT32 else 64
        tile_n = next((t for t in (8, 16, 32) if t >= problem.n), widest)
        threads = max(1, tile_n // (2 * chunk))
        order = "binned" if problem.layout is Layout.COLUMN else "sorted"
        whole = PanelSpmmConfig(tile_n=tile_n, threads_per_row=threads, row_order=order)
        if self._shared_bytes(problem, whole) <= device.shared_memory_per_block:
            return whole
        turns = replace(whole, panel_k=512, stages=2)
        if problem.value_sets > 1:
            # The heads of an attention: neighbours see about the same keys, so that two share their loads of B, and
            # more rows to a block load less of it.
            turns = replace(turns, row_order="local", threads_per_row=max(1, tile_n // 16), rows_per_group=2)
        while self._shared_bytes(problem, turns) > device.shared_memory_per_block and turns.panel_k > 64:
            turns = replace(turns, panel_k=turns.panel_k // 2)
        # More registers cost nothing and hold everything if shared memory leaves no room for further blocks.
        roomy = replace(turns, registers=128)
        blocks = self._resident_blocks(problem, turns, device)
        return roomy if self._resident_blocks(problem, roomy, device) == blocks else turns


FAMILY = PanelSpmm()
