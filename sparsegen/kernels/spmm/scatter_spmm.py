"""SpMM by columns of A: a row of B is loaded once for a column's nonzeros, and products are added by atomics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, items_in_grid
from sparsegen.kernels.layouts.limits import MAX_GRID_Y
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

VECTORS = (1, 2, 4)
MOST_SUM_BYTES = 25 << 20  # half of an H100's L2: from there on, each addition reads and writes DRAM
LEAST_PER_COLUMN = 4  # nonzeros that a row of B is loaded for
ADDITION_CYCLES = 0.32  # cycles of a multiprocessor for each product that L2 adds up; as fitted
TASK_NONZERO_CYCLES = 255.0  # cycles of a warp's nonzero, whose additions wait for each other
ENOUGH_TASKS = 32  # tasks for a multiprocessor: half of the warps that it holds


@dataclass(frozen=True)
class ScatterSpmmConfig(Config):
    """One point of the tuning space of `ScatterSpmm`."""

    vector: int = tunable(
        1,
        VECTORS,
        "neighbouring columns of C per lane; a warp takes 32 times as many, and loads them of B at once",
    )
    panel_m: int = tunable(
        128, (32, 64, 128, 256), "rows of C per panel, in which nonzeros go by columns", packs=True
    )
    task_nonzeros: int = tunable(
        1024, (256, 1024, 4096), "nonzeros of a panel that a warp takes, at most", packs=True
    )
    warps: int = tunable(8, (4, 8, 16), "warps per block")


class ScatterSpmm(Family[SpmmProblem, ScatterSpmmConfig]):
    """Warps go through nonzeros column by column and add products to float32 sums in global memory.

    Sums are added up in the order in which warps come: results differ in their last bits from call to call. Products
    and sums below 2⁻¹²⁶ count as zero. Zeros of A are not multiplied: an infinity or NaN of B reaches only rows that
    have a nonzero there.
    """

    name = "scatter_spmm"
    summary = "SpMM by columns of A: each row of B is loaded once per panel, products are added by atomics"
    source = (
        "products by columns of A: Pal et al., OuterSPACE, HPCA 2018, here with a dense B; tasks and "
        "atomic sums are sparsegen's own"
    )
    template = "spmm/scatter_spmm.cu.j2"
    entry = "scatter_spmm"
    deterministic = False
    size_names = ("m", "k", "n", "task_count")
    packed_names = ("tasks", "columns", "rows", "values")
    scratch_names = ("sums", "counters")
    problem_type = SpmmProblem
    config_type = ScatterSpmmConfig

    def item_size_names(self, problem: SpmmProblem) -> tuple[str, ...]:
        return ("stored",) if problem.value_sets > 1 else ()

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield Constraint(problem.layout is Layout.ROW, f"B and C ({problem.layout}) are row-major")
        yield items_in_grid(problem)
        widest = MAX_GRID_Y * WARP
        yield Constraint(problem.n <= widest, f"C has at most {widest} columns ({problem.n})")

    def constraints(
        self, problem: SpmmProblem, config: ScatterSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield Constraint(
            problem.n % config.vector == 0,
            f"vector ({config.vector}) divides n ({problem.n}), so that rows of B, C and the sums are aligned",
        )
        yield Constraint(
            config.vector == 1 or WARP * config.vector <= 2 * problem.n,
            f"at least half of a warp's {WARP} lanes have vector ({config.vector}) columns of C ({problem.n})",
        )

    def requirements(
        self, problem: SpmmProblem, features: Features, config: ScatterSpmmConfig
    ) -> Iterator[Constraint]:
        taken = _sum_bytes(problem)
        yield Constraint(
            taken <= MOST_SUM_BYTES,
            f"float32 sums of all of C ({taken} bytes) stay in L2: at most {MOST_SUM_BYTES} bytes",
        )
        in_column = features.nnz / max(1, features.k)
        yield Constraint(
            in_column >= LEAST_PER_COLUMN,
            f"columns of A have {LEAST_PER_COLUMN} nonzeros or more on average ({in_column:.2f}) to share a load of B",
        )

    def is_worth_trying(self, problem: SpmmProblem, config: ScatterSpmmConfig, device: Device) -> bool:
        """True unless a panel is twice as high as A or higher: such panels are mostly padding."""
        return config.panel_m < 2 * max(WARP, problem.m)

    def constants(self, problem: SpmmProblem, config: ScatterSpmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "columns_divide": problem.n % (WARP * config.vector) == 0,
            **batch_constants(problem),
        }

    def pack(self, problem: SpmmProblem, config: ScatterSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        panels = ceil_div(problem.m, config.panel_m)
        by_column = matrix.transposition()
        panel = by_column.column_indices // config.panel_m
        narrow = panel.astype(np.min_scalar_type(panels))  # 16 bits are sorted several times faster
        order = np.argsort(narrow, kind="stable")  # within a panel it stays by column and then by row
        rows = by_column.column_indices[order]
        columns = np.repeat(np.arange(problem.k, dtype=np.int32), np.diff(by_column.row_offsets))[order]
        source = empty_as_padding(by_column.source[order])
        tasks = _tasks(np.bincount(panel, minlength=panels), config.task_nonzeros)
        stored = {"stored": source.size} if problem.value_sets > 1 else {}
        return Packed(
            arrays={
                "tasks": empty_as_one(tasks.ravel()),
                "columns": empty_as_one(columns),
                "rows": empty_as_one((rows % config.panel_m).astype(np.uint16)),
                "values": stored_values(matrix, source, problem.dtype),
            },
            sizes={"task_count": len(tasks), **stored},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
            scratch={
                "sums": _sum_bytes(problem),
                "counters": 4
                * problem.batch
                * panels
                * ceil_div(problem.n, WARP),  # with the narrowest tiles
            },
        )

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: ScatterSpmmConfig
    ) -> Mapping[str, int]:
        panels = max(1, ceil_div(problem.m, config.panel_m))
        of_panel = math.ceil(features.nnz / (panels * config.task_nonzeros))
        return {"task_count": panels * max(1, of_panel)}

    def launch(
        self, problem: SpmmProblem, config: ScatterSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(
                ceil_div(sizes["task_count"], config.warps),
                ceil_div(problem.n, WARP * config.vector),
                problem.batch,
            ),
            block=(WARP * config.warps, 1, 1),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: ScatterSpmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        products = problem.batch * features.nnz * problem.n
        moved = _sum_bytes(problem) + problem.batch * problem.k * problem.n * problem.dtype.itemsize
        in_panel = features.nnz / max(1, ceil_div(problem.m, c.panel_m))
        return (
            rates.launch_us
            + products * ADDITION_CYCLES / device.cycles_per_us
            + moved / rates.copy_bytes_per_us
            + min(c.task_nonzeros, in_panel) * TASK_NONZERO_CYCLES / rates.clock_mhz
        )

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> ScatterSpmmConfig:
        """The widest vectors that n fills, and tasks that are short where there are few."""
        vector = max(v for v in VECTORS if problem.n % v == 0 and (v == 1 or WARP * v <= problem.n))
        tiles = problem.batch * ceil_div(problem.n, WARP * vector)
        is_small = features.nnz * tiles < 1024 * ENOUGH_TASKS * device.multiprocessors
        return ScatterSpmmConfig(vector=vector, task_nonzeros=256 if is_small else 1024)


def _sum_bytes(problem: SpmmProblem) -> int:
    """Bytes of a float32 sum for each element of C."""
    return 4 * problem.batch * problem.m * problem.n


def _tasks(lengths: Array, most: int) -> Array:
    """Splits panels into tasks of at most ``most`` nonzeros; an empty panel has one task without nonzeros.

    Args:
        lengths: nonzeros of each panel; panels follow each other.

    Returns:
        int32 [tasks, 4]: first nonzero, number of nonzeros, panel, tasks of that panel.
    """
    of_panel = np.maximum(1, ceil_div(lengths, most))
    panel = np.repeat(np.arange(lengths.size), of_panel)
    number = np.arange(panel.size) - np.repeat(np.cumsum(of_panel) - of_panel, of_panel)
    begin = (np.cumsum(lengths) - lengths)[panel] + number * most
    count = np.minimum(most, lengths[panel] - number * most)
    return np.stack([begin, count, panel, of_panel[panel]], axis=1).astype(np.int32)


FAMILY = ScatterSpmm()
