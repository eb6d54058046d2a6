"""SDDMM from panels of B in shared memory: rows that strips of nonzeros gather are read there, not from L2."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants
from sparsegen.kernels.layouts.limits import (
    MAX_GRID_Y,
    capable,
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.sddmm.panel_tasks import Groups
from sparsegen.kernels.sddmm.sampled import VALUES, SampledProduct
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType, SddmmEpilogue, SddmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

ASYNCHRONOUS_COPIES = (8, 0)  # compute capability
CHUNK_BYTES = 16
BANK_BYTES = 128  # shared memory's 32 banks of 4 bytes
LONGEST_ROW = 2048  # bytes, of B
MAX_THREADS = 2048  # threads of a multiprocessor
# Elements of a row of A that a thread best keeps: sums are long, and 16 bits leave registers for conversions.
LEFT_VALUES = {DType.FLOAT32: 32, DType.FLOAT16: 16, DType.BFLOAT16: 16}
FEWEST_LEFT_VALUES = 8
TURNS = (1, 2, 4)
TURNS_OF_HEADS = (8,)  # under a causal mask the first panels have most rows, and more blocks even that out
START_US = 2.2
# Fitted, in a multiprocessor's cycles: for 128 bytes of a nonzero's row in shared memory, for 32 products, for a
# result over how many are stored side by side, for a warp's step, and until it has its next tasks.
ROW_CYCLES, PRODUCT_CYCLES, STORE_CYCLES, STEP_CYCLES, TASK_CYCLES = 0.91, 0.156, 0.58, 6.6, 23.0
MOVES = 0.8  # multiple of the time of the memory for the least traffic
PANEL_LOADS, UNALIGNED_PANEL_LOADS = 0.45, 1.2  # multiples of the time of the L2 for the panels of all blocks
# For 32 elements that are loaded one by one, where rows are not aligned, and for 32 values that scale results.
UNALIGNED_CYCLES, SCALE_CYCLES = 4.0, 65.0
# Time of subwarps that read rows at random over that of one, by the places in 128 bytes where rows may begin: as many
# subwarps meet there as the fullest of as many boxes has of as many balls.
MEETING = {1: 1.0, 2: 1.5, 4: 2.1}
SKEW = 4.0  # deviations by which the fullest panel has more nonzeros than the mean; columns are as uneven as rows


@dataclass(frozen=True)
class PanelSddmmConfig(Config):
    """One point of the tuning space of `PanelSddmm`."""

    panel_n: int = tunable(
        256,
        (64, 128, 192, 256, 384, 512, 768, 1024),
        "columns of D in a panel: rows of B in shared memory",
        packs=True,
    )
    threads_per_strip: int = tunable(
        4, (2, 4, 8, 16, 32), "threads of a subwarp", searched=(2, 4, 8, 16), packs=True
    )
    strip: int = tunable(
        4, (2, 4, 8, 16), "nonzeros of a row that a subwarp computes at once", searched=(2, 4, 8), packs=True
    )
    strips: int = tunable(
        16, (1, 4, 16), "strips of a row that a subwarp takes with one load of A, at most", packs=True
    )
    warps: int = tunable(16, (4, 8, 16, 32), "warps per block", searched=(8, 16, 32))
    resident_blocks: int = tunable(
        1,
        (1, 2, 4),
        "occupancy: blocks that must fit on a multiprocessor; more leave a thread fewer registers",
    )
    turns: int = tunable(
        1,
        (1, 2, 4, 8),
        "blocks that follow each other in each place; more load panels more often",
        searched=(1, 2, 4),
    )
    row_order: str = tunable(
        "sorted",
        ("natural", "sorted"),
        "row swizzle: a panel's rows as they come, or those with most strips first, so that subwarps end together",
        packs=True,
    )


class PanelSddmm(SampledProduct[PanelSddmmConfig]):
    """Blocks keep ``panel_n`` rows of B in shared memory; subwarps go through the nonzeros of rows of A within them.

    Where `csr_sddmm` reads k elements of B from L2 for each nonzero, this reads them from shared memory, which gives
    128 bytes per clock and multiprocessor, some five times as much; L2 is asked for the panels, once per block, and for
    a row of A per panel that it has nonzeros in. Rows of a panel lie at multiples of 128 bytes where k fills these, and
    then no two of the eight lanes that read together meet in a bank.
    """

    name = "panel_sddmm"
    summary = "SDDMM from panels of B kept in shared memory, strips of nonzeros dotted by subwarps"
    source = (
        "strips, subwarps and the transposed reduction of Gale et al., SC 2020, section VI, on panels for Hopper's "
        "227 KiB of shared memory per block"
    )
    size_names = ("n", "k")
    packed_names = ("first_groups", "tasks", "indices", VALUES)

    def scope(self, problem: SddmmProblem) -> Iterator[Constraint]:
        yield from super().scope(problem)
        row_bytes = problem.k * problem.dtype.itemsize
        yield Constraint(
            row_bytes <= LONGEST_ROW,
            f"a row of B ({row_bytes} bytes) has at most {LONGEST_ROW} bytes: few longer ones fit shared memory",
        )

    def constraints(
        self, problem: SddmmProblem, config: PanelSddmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        yield capable(device, ASYNCHRONOUS_COPIES)
        panels = self._panels(problem, c)
        yield Constraint(panels <= MAX_GRID_Y, f"n / panel_n ({panels}) is at most {MAX_GRID_Y}")
        threads = WARP * c.warps * c.resident_blocks
        yield Constraint(
            threads <= MAX_THREADS, f"warps · 32 · resident_blocks ({threads}) is at most {MAX_THREADS}"
        )
        # A row's share, sums, indices in use and under way; chunks of B, addresses and counters, as nvcc was seen to
        # need them.
        beside = 42 if problem.dtype is DType.FLOAT32 else 34
        needed = self._left_values(problem, c) + c.strip + 2 * (c.strip // 2) + beside
        yield enough_registers(needed, threads, at_a_time=8)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("the rows of a panel", shared, device)
        yield resident_blocks_fit(c.resident_blocks, shared, device)

    @staticmethod
    def _chunks(problem: SddmmProblem, config: PanelSddmmConfig) -> int:
        """16-byte chunks of a row for each thread of a subwarp."""
        return max(1, ceil_div(problem.k * problem.dtype.itemsize, CHUNK_BYTES * config.threads_per_strip))

    def _left_values(self, problem: SddmmProblem, config: PanelSddmmConfig) -> int:
        """Elements of a row of A that a thread keeps, as floats."""
        return self._chunks(problem, config) * (CHUNK_BYTES // problem.dtype.itemsize)

    def _row_bytes(self, problem: SddmmProblem, config: PanelSddmmConfig) -> int:
        """Bytes of a row of B in shared memory, with the zeros behind its end."""
        return self._chunks(problem, config) * config.threads_per_strip * CHUNK_BYTES

    @staticmethod
    def _is_aligned(problem: SddmmProblem) -> bool:
        return problem.k * problem.dtype.itemsize % CHUNK_BYTES == 0

    def _shared_bytes(self, problem: SddmmProblem, config: PanelSddmmConfig) -> int:
        return config.panel_n * self._row_bytes(problem, config)

    def is_worth_trying(self, problem: SddmmProblem, config: PanelSddmmConfig, device: Device) -> bool:
        """True for 8 to 32 warps on a multiprocessor, panels not twice as wide as the result, and threads that keep at
        least `FEWEST_LEFT_VALUES` of a row of A. It rests on arithmetic: warps to hide loads, padding, and sums that
        are long enough.
        """
        c = config
        narrowest = round_up(problem.k * problem.dtype.itemsize, BANK_BYTES)
        return (
            8 <= c.warps * c.resident_blocks <= 32
            and c.panel_n < max(128, 2 * problem.n)
            and self._row_bytes(problem, c) <= narrowest
            and (c.threads_per_strip == 2 or self._left_values(problem, c) >= FEWEST_LEFT_VALUES)
            and c.strip <= 4 * c.threads_per_strip
        )

    def constants(self, problem: SddmmProblem, config: PanelSddmmConfig) -> Mapping[str, Value]:
        itemsize = problem.dtype.itemsize
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "chunks": self._chunks(problem, config),
            "whole_rows": problem.k * itemsize == self._row_bytes(problem, config),
            "aligned": self._is_aligned(problem),
            **batch_constants(problem),
        }

    def pack(self, problem: SddmmProblem, config: PanelSddmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        c = config
        groups = Groups.of(
            matrix,
            panel_n=c.panel_n,
            strip=c.strip,
            strips=c.strips,
            tasks_per_group=WARP // c.threads_per_strip,
            sort_rows=c.row_order == "sorted",
        )
        arrays = {
            "first_groups": groups.first,
            "tasks": empty_as_one(groups.tasks),
            "indices": empty_as_one(groups.indices),
        }
        sizes = {"nnz": matrix.nnz, "longest": int(np.diff(groups.first).max(initial=0))}
        return self.with_values(problem, matrix, arrays, sizes)

    def expected_sizes(
        self, problem: SddmmProblem, features: Features, config: PanelSddmmConfig
    ) -> Mapping[str, int]:
        """Groups of tasks of a panel: as many as its rows with nonzeros make."""
        return {
            "longest": math.ceil(
                self._tasks_of_panel(problem, features, config) / (WARP // config.threads_per_strip)
            )
        }

    def launch(
        self, problem: SddmmProblem, config: PanelSddmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        blocks = self._blocks_per_panel(problem, c, device.multiprocessors)
        return Launch(
            grid=(min(blocks, ceil_div(sizes["longest"], c.warps)), self._panels(problem, c), problem.batch),
            block=(WARP * c.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, c),
        )

    @staticmethod
    def _panels(problem: SddmmProblem, config: PanelSddmmConfig) -> int:
        return ceil_div(problem.n, config.panel_n)

    def _blocks_per_panel(self, problem: SddmmProblem, config: PanelSddmmConfig, multiprocessors: int) -> int:
        """The blocks that fill the device at this occupancy, ``turns`` times over."""
        places = config.turns * config.resident_blocks * multiprocessors
        return max(1, places // (max(1, self._panels(problem, config)) * problem.batch))

    def analytic_us(
        self, problem: SddmmProblem, features: Features, config: PanelSddmmConfig, device: Device
    ) -> float:
        rates = device.expected_rates
        if not self.is_valid(problem, config, device):
            return math.inf
        moved = MOVES * problem.cost(features.nnz).bytes
        return (
            rates.launch_us
            + START_US
            + self._microseconds(problem, features, config, device)
            + moved / rates.copy_bytes_per_us
        )

    def _microseconds(
        self, problem: SddmmProblem, features: Features, config: PanelSddmmConfig, device: Device
    ) -> float:
        """The expected time of all nonzeros, with those that fill up strips, where they lie anywhere."""
        c, panels = config, max(1, self._panels(problem, config))
        tasks = problem.batch * panels * self._tasks_of_panel(problem, features, c)
        nonzeros = problem.batch * features.nnz + tasks * (c.strip - 1) / 2
        row_bytes, subwarps = self._row_bytes(problem, c), WARP // c.threads_per_strip
        per_product = 1 if problem.dtype is DType.FLOAT32 else 2  # a conversion comes first
        begins = BANK_BYTES // max(math.gcd(row_bytes, BANK_BYTES), CHUNK_BYTES * min(8, c.threads_per_strip))
        elements = row_bytes / problem.dtype.itemsize / WARP
        cycles = nonzeros * (
            ROW_CYCLES * MEETING[begins] * row_bytes / BANK_BYTES
            + PRODUCT_CYCLES * per_product * elements
            + (SCALE_CYCLES / WARP if problem.epilogue is SddmmEpilogue.SCALE else 0.0)
            + STORE_CYCLES / min(c.strip, c.threads_per_strip)
            + STEP_CYCLES / (subwarps * c.strip)
        )
        cycles += tasks / subwarps * TASK_CYCLES
        if not self._is_aligned(problem):
            cycles += tasks * elements * UNALIGNED_CYCLES
        blocks_per_panel = self._blocks_per_panel(problem, c, device.multiprocessors)
        blocks = panels * problem.batch * blocks_per_panel
        places = c.resident_blocks * device.multiprocessors
        idle = math.ceil(blocks / places) * places / blocks
        idle *= max(
            1.0, panels * c.panel_n / max(1, problem.n)
        )  # the last panel has fewer columns and as many blocks
        tasks_per_panel = max(tasks / (panels * problem.batch), features.nnz / (panels * c.strip * c.strips))
        busy = (
            panels * problem.batch * min(blocks_per_panel, math.ceil(tasks_per_panel / (subwarps * c.warps)))
        )
        idle *= max(1.0, device.multiprocessors / max(1, busy))
        idle *= 1 + SKEW * features.row_cov / math.sqrt(c.panel_n)
        loaded = max(device.multiprocessors, busy) * c.panel_n * row_bytes
        loads = PANEL_LOADS if self._is_aligned(problem) else UNALIGNED_PANEL_LOADS
        return idle * cycles / device.cycles_per_us + loads * loaded / device.l2_bytes_per_us

    @staticmethod
    def _tasks_of_panel(problem: SddmmProblem, features: Features, config: PanelSddmmConfig) -> float:
        """Rows that have nonzeros in a panel, where these lie anywhere."""
        in_panel = features.row_mean * min(1.0, config.panel_n / max(1, problem.n))  # of a row in a panel
        return features.m * -math.expm1(-in_panel)

    def heuristic(self, problem: SddmmProblem, features: Features, device: Device) -> PanelSddmmConfig:
        """Subwarps that suit k, of those whose registers suffice, and the panels and strips that should be fastest with
        them.
        """
        # Two threads store their results to twice as many lines at a time as four.
        widths = [PanelSddmmConfig(threads_per_strip=threads) for threads in (2, 4, 8, 16, 32)]
        widths.sort(
            key=lambda c: (
                self._row_bytes(problem, c),
                c.threads_per_strip == 2,
                abs(self._left_values(problem, c) - LEFT_VALUES[problem.dtype]),
            )
        )
        typical = device.typical_rated
        for width in widths:
            candidates = [
                replace(width, panel_n=panel_n, strip=strip, resident_blocks=resident_blocks, turns=turns)
                for panel_n, strip, resident_blocks, turns in itertools.product(
                    (64, 128, 256, 384, 512, 768, 1024),
                    (2, 4, 8),
                    (1, 2),
                    TURNS if problem.batch == 1 else TURNS_OF_HEADS,
                )
            ]
            candidates.sort(key=lambda c: self._microseconds(problem, features, c, typical))
            valid = (c for c in candidates if self.is_valid(problem, c, device))
            if (config := next(valid, None)) is not None:
                return config
        return PanelSddmmConfig(panel_n=64, threads_per_strip=32)


FAMILY = PanelSddmm()
