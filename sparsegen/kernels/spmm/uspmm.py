"""The base kernel for uniform sparsity: ELL, a place of a row per thread (Muralidharan, MLSys 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.ell import (
    ell_sources,
    filled_rows,
    gather_repeating,
    padding_requirement,
    places_in_rows,
)
from sparsegen.kernels.layouts.limits import MAX_GRID_Y, tiles_in_grid
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

# Fitted, in a multiprocessor's cycles: for a product, and more of it in a row-major B the less lanes, which are
# neighbouring rows, share columns; and for a place of a row on its way.
START_US = 1.0
PRODUCT_CYCLES, APART_CYCLES = 0.11, 0.4
PLACE_CYCLES = 190.0
INDEX_BYTES = 4
LOADS = 13.0  # cycles of loads of B and stores of C, in parts of their sectors


@dataclass(frozen=True, eq=False, repr=False)
class UspmmConfig(Config):
    """One point of the tuning space of `Uspmm`."""

    vsize: int = tunable(2, (1, 2, 4, 8), "columns of B that a thread multiplies its element of A with")
    nwarp: int = tunable(8, (1, 2, 4, 8, 16), "warps of a block for each of those columns")


class Uspmm(Family[SpmmProblem, UspmmConfig]):
    """Blocks of nwarp · vsize warps compute 32 rows by vsize columns; the warps share the places of the rows.

    A row without nonzeros multiplies zeros with row 0 of B, so that an infinity or NaN there makes NaN in it.
    """

    name = "uspmm"
    summary = "ELL SpMM for uniform sparsity: lanes along m, warps along k', partial sums in shared memory"
    source = "Muralidharan: Uniform Sparsity in Deep Neural Networks, MLSys 2023, the USpMM kernel"
    size_names = ("m", "k", "n", "width")
    packed_names = ("ellval", "ellidx", "filled")
    packing_version = 2

    def requirements(
        self, problem: SpmmProblem, features: Features, config: UspmmConfig
    ) -> Iterator[Constraint]:
        yield padding_requirement(features)

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield one_batch_element(problem)

    def constraints(self, problem: SpmmProblem, config: UspmmConfig, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        warps = config.nwarp * config.vsize
        yield Constraint(warps <= 32, f"a block has nwarp · vsize ({warps}) warps, at most 32")
        yield tiles_in_grid("n / vsize", problem.n, config.vsize)

    def is_worth_trying(self, problem: SpmmProblem, config: UspmmConfig, device: Device) -> bool:
        """True unless a warp's vector is twice as wide as the result or wider: such vectors are mostly padding."""
        return config.vsize < 2 * problem.n

    def constants(self, problem: SpmmProblem, config: UspmmConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "columns_divide": problem.n % config.vsize == 0,
        }

    def pack(self, problem: SpmmProblem, config: UspmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        width = int(np.diff(matrix.row_offsets).max(initial=0))
        by_row = ell_sources(matrix, problem.m, width, places_in_rows(matrix))
        source = empty_as_padding(by_row.T)  # coalesced along m
        columns = gather_repeating(matrix, matrix.column_indices, by_row).T.astype(np.uint32)
        return Packed(
            arrays={
                "ellval": stored_values(matrix, source, problem.dtype),
                "ellidx": empty_as_one(columns.ravel()),
                "filled": filled_rows(matrix, problem.m),
            },
            sizes={"width": width},
            nnz=matrix.nnz,
            values="ellval",
            value_source=lambda: source,
        )

    def launch(
        self, problem: SpmmProblem, config: UspmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(ceil_div(problem.m, WARP), ceil_div(problem.n, config.vsize), 1),
            block=(WARP, config.nwarp * config.vsize, 1),
        )

    def published(self, problem: SpmmProblem) -> tuple[UspmmConfig, ...]:
        """(N_warp, V_size) = (2, 8), which section 4.1 of the paper gives USpMM, and (1, 8), which section 4.3 does."""
        return UspmmConfig(vsize=8, nwarp=2), UspmmConfig(vsize=8, nwarp=1)

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: UspmmConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        products = problem.m * features.row_max * ceil_div(problem.n, c.vsize) * c.vsize
        apart = APART_CYCLES * (1 - features.block_fill) if problem.layout is Layout.ROW else 0.0
        multiplied = products * (PRODUCT_CYCLES + apart) / device.cycles_per_us
        stored = problem.m * features.row_max * (problem.dtype.itemsize + INDEX_BYTES)
        moved = LOADS * (problem.k + problem.m) * problem.n * problem.dtype.itemsize
        return (
            rates.launch_us
            + START_US
            + max(multiplied, stored / rates.copy_bytes_per_us)
            + moved / rates.copy_bytes_per_us
            + features.row_max / c.nwarp * PLACE_CYCLES / rates.clock_mhz
        )

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> UspmmConfig:
        vsize = next((v for v in (2, 4) if problem.n <= v * MAX_GRID_Y), 8)
        return UspmmConfig(vsize=1 if problem.n == 1 else vsize, nwarp=min(8, 32 // vsize))


FAMILY = Uspmm()
