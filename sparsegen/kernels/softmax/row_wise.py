"""Base class of the families that give each row a subwarp, a warp or a block, with one value for each nonzero."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.rows import order_rows
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import MAX_INDEX, Array, CsrMatrix
from sparsegen.operators import Problem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

VALUES_KEPT = 64  # values of a thread, in registers
WIDEST = 8  # values of a vector
LEAST_SHARE = 8  # values of a row for each thread of the heuristic config
HEURISTIC_KEPT = 16  # values of a thread in registers
ENOUGH_THREADS = 1024  # on each multiprocessor
EQUAL_ROWS = 0.1  # coefficient of variation below which sorting rows brings nothing
STEP_US = 0.8  # of a thread's loads of a row's next values, in both passes over them; as fitted
BATCHED_ENDS = 2.5  # multiple of what ends cost where a batch shifts them; as fitted
ROW_CYCLES = 35.0  # cycles of a multiprocessor for each warp of a row; as fitted


@dataclass(frozen=True)
class RowConfig(Config):
    """One point of the tuning space of the `RowWise` families."""

    threads_per_row: int = tunable(32, (4, 8, 16, 32, 64, 128, 256, 512, 1024), "threads that share a row")
    rows_per_block: int = tunable(4, (1, 2, 4, 8, 16, 32, 64), "rows of a block")
    vector_width: int = tunable(4, (1, 2, 4, 8), "values per load and store")
    vectors_kept: int = tunable(
        2, (1, 2, 4, 8), "vectors of a thread that stay in registers; what a row has beyond is read twice"
    )
    row_order: str = tunable(
        "sorted",
        ("natural", "sorted"),
        "row swizzle: as they come, or the longest first, so that subwarps of a warp end together",
        packs=True,
    )


P = TypeVar("P", bound=Problem)
R = TypeVar("R", bound=RowConfig)


class RowWise(Family[P, R]):
    """A family whose kernel reads and writes the values of each row by themselves, nothing of another row.

    Rows without nonzeros are not launched at all.

    Attributes:
        arrays_kept: number of arrays of a row's values that the kernel keeps in registers.
        start_us, sorted_us: microseconds until values come, and the more where rows are in another order.
        value_cycles: cycles of a multiprocessor for a warp's values, one for each thread, whether a row has them or
            not.
        end_cycles: the same for a vector at a row's end, which is read and written value by value. All four are
            fitted.
    """

    size_names = ("rows",)
    packed_names = ("row_order", "row_offsets")
    arrays_kept: ClassVar[int]
    start_us: ClassVar[float]
    sorted_us: ClassVar[float]
    value_cycles: ClassVar[float]
    end_cycles: ClassVar[float]

    def batch_size_names(self, problem: P) -> tuple[str, ...]:
        return ("nnz",) if problem.batch > 1 else ()

    def scope(self, problem: P) -> Iterator[Constraint]:
        yield batch_in_grid(problem)

    def constraints(self, problem: P, config: R, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        threads = c.threads_per_row * c.rows_per_block
        kept = c.vectors_kept * c.vector_width * self.arrays_kept
        of_each = f" · {self.arrays_kept}" if self.arrays_kept > 1 else ""
        yield Constraint(
            threads % WARP == 0 and threads <= 1024,
            f"threads_per_row · rows_per_block ({threads}) is a multiple of 32, at most 1024",
        )
        yield Constraint(
            c.threads_per_row <= WARP or c.rows_per_block == 1,
            f"a row of several warps ({c.threads_per_row} threads) has a block of its own",
        )
        yield Constraint(
            c.vector_width * problem.dtype.itemsize <= 16,
            f"vector_width ({c.vector_width}) elements are at most 16 bytes",
        )
        yield Constraint(
            kept <= VALUES_KEPT,
            f"a thread keeps vectors_kept · vector_width{of_each} ({kept}) values, at most {VALUES_KEPT}",
        )

    def constants(self, problem: P, config: R) -> Mapping[str, Value]:
        return {"dtype": problem.dtype.value, **batch_constants(problem)}

    def pack(self, problem: P, config: R, matrix: CsrMatrix) -> Packed[Array]:
        lengths = np.diff(matrix.row_offsets)
        margin = 1024 * VALUES_KEPT  # places past a row's end that the largest block may count to
        if problem.batch > 1:
            margin += WIDEST  # before a batch element's values, from which its places are counted
        if matrix.nnz > MAX_INDEX - margin:
            raise MatrixError(
                f"{matrix.nnz} nonzeros are more than 32-bit positions reach ({MAX_INDEX - margin}); "
                "split the matrix by rows"
            )
        order = order_rows(lengths, config.row_order, 1)
        order = order[lengths[order] > 0]
        return Packed(
            arrays={"row_order": empty_as_one(order), "row_offsets": np.array(matrix.row_offsets)},
            sizes={"rows": int(order.size), "nnz": matrix.nnz},
            nnz=matrix.nnz,
        )

    def expected_sizes(self, problem: P, features: Features, config: R) -> Mapping[str, int]:
        return {"rows": features.m}

    def launch(self, problem: P, config: R, sizes: Mapping[str, int], device: Device) -> Launch:
        c = config
        return Launch(
            grid=(ceil_div(sizes["rows"], c.rows_per_block), 1, problem.batch),
            block=(c.threads_per_row * c.rows_per_block, 1, 1),
        )

    def analytic_us(self, problem: P, features: Features, config: R, device: Device) -> float:
        """The fullest multiprocessor's rows, the bytes that are moved and the longest row, which overlap."""
        c, rates, stride = config, device.expected_rates, config.threads_per_row * config.vector_width
        beyond = max(
            0.0, features.row_mean / stride - c.vectors_kept
        )  # vectors of a thread that are read twice
        vectors = c.vectors_kept + 2 * (math.ceil(beyond) if c.threads_per_row >= WARP else beyond)
        rows = max(1, WARP // c.threads_per_row)  # of a warp, which begin together and end one by one
        ends = min(1 + rows, c.vectors_kept + math.ceil(beyond))
        of_end = self.end_cycles * rows * (BATCHED_ENDS if problem.batch > 1 else 1.0)
        of_warp = ROW_CYCLES + c.vector_width * (of_end * ends + self.value_cycles * vectors)
        warps = problem.batch * features.m * c.threads_per_row / WARP
        blocks = problem.batch * ceil_div(features.m, c.rows_per_block)
        waves = max(1, blocks) / device.multiprocessors
        busy = warps * of_warp / device.cycles_per_us * math.ceil(waves) / waves
        moved = problem.cost(features.nnz).bytes / rates.copy_bytes_per_us
        longest = STEP_US * max(0.0, features.row_max / stride - c.vectors_kept)
        start = self.start_us + (self.sorted_us if c.row_order == "sorted" else 0.0)
        return rates.launch_us + start + math.hypot(busy, moved, longest)

    def heuristic(self, problem: P, features: Features, device: Device) -> R:
        """A thread's share of a row is some four vectors, unless the rows are too few to fill the device then, or take
        less time with more threads up to a warp.
        """
        vector = self.heuristic_vector(problem)
        threads, rows = 4, features.m * problem.batch
        while threads < 512 and threads * 1.5 * max(4 * vector, LEAST_SHARE) <= features.row_mean:
            threads *= 2
        while (
            threads < 512
            and rows * threads < device.multiprocessors * ENOUGH_THREADS
            and threads * vector < features.row_mean
        ):
            threads *= 2
        order = "natural" if features.row_cov < EQUAL_ROWS else "sorted"
        wider = (1 << power for power in range(threads.bit_length() - 1, max(threads, WARP).bit_length()))
        configs = [self._of_threads(features, threads, vector, order) for threads in wider]
        return self.fastest(problem, features, configs, device)

    def _of_threads(self, features: Features, threads: int, vector: int, order: str) -> R:
        """The config with this many threads for a row, in whose registers a row's mean fits, as far as there are as
        many.
        """
        kept = 1
        while kept < min(8, HEURISTIC_KEPT // vector) and kept * threads * vector < features.row_mean:
            kept *= 2
        return self.config_type(
            threads_per_row=threads,
            rows_per_block=128 // threads if threads <= WARP else 1,
            vector_width=vector,
            vectors_kept=kept,
            row_order=order,
        )

    def heuristic_vector(self, problem: P) -> int:
        """The vector width of the heuristic config: 16 bytes, of a batch at most 4 values.

        Of a batch in 16 bits vectors of 8 took 1.2 to 1.7 times as long on an H100 and an H200.
        """
        return min(16 // problem.dtype.itemsize, 4 if problem.batch > 1 else WIDEST)
