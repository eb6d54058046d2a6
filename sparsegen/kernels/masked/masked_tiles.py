"""The common part of families of masked products that compute tiles of the result with warp-level tensor cores.

Each of the three operators is a product A · B in which a mask covers the blocks of A or of the result. `Side` describes
an operator's problem as such a product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import enough_registers, resident_blocks, shared_memory_fits
from sparsegen.kernels.layouts.loads import LEAST_ASYNC, LOAD_BYTES, step_us, widest_vector
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, sums_of, threads_of
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DsdProblem, DType, FactorType, MaskedProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

PITCH_BYTES = (
    16  # padding of each row in shared memory, so that the rows of a fragment are in different banks
)
PRODUCT_BYTES = 32  # bytes of the contraction in one tensor-core instruction
# Fitted on an H100, 2026-11-23 (89 times of float16 and TF32 at 1024³ to 4096³; standard deviation 11 %): microseconds
# of the kernel's start; the share of the tensor cores' rate that blocks reach together; microseconds from a stage's
# load to its use, of which each stage on its way hides a part; and bytes that a multiprocessor copies in a cycle.
START_US = 2.5
REACHED = 0.46
ARRIVAL_US = 0.31
COPIED_PER_CYCLE = 21.0
BEGUN_US = (
    0.014  # microseconds of a thread's load of few bytes, whose place is known from step to step: on an H200
)
# Measured on an H200 (20 times with blocks of 16, 2026-11-29): the fraction of that speed which steps of one
# instruction reach, between whose loads and products nothing else runs.
SHORT_STEP = 0.75
TF32_PRODUCTS = 3  # products that `tensor_products_per_us` assumes for a float32 product, which is one here
EXTRA_REGISTERS = 64  # registers that a thread needs besides its sums, about


P = TypeVar("P", bound=MaskedProblem)
C = TypeVar("C", bound=MaskedTilesConfig)

# tile_m, tile_n, step, warps_m, warps_n and stages, from large tiles to small ones, for 16-bit elements. Copies from L2
# take most of the time, so that the largest tiles are fastest (2048³ and 4096³ on an H100); tiles of blocks of few rows
# are lower, as they meet fewer rows of the mask, and those of a sampled result narrower, as more of them are dead.
WIDE = (128, 256, 64, 2, 4, 3)
LOW = (64, 256, 32, 1, 4, 4)
SQUARE = (128, 128, 64, 2, 2, 3)
SMALL = ((64, 128, 32, 2, 2, 4), (64, 64, 32, 2, 2, 5), (32, 64, 32, 1, 4, 5), (32, 32, 32, 2, 2, 5))
FLOAT32 = (
    (128, 128, 16, 2, 4, 3),
    (64, 128, 16, 2, 4, 3),
    (64, 64, 16, 2, 2, 3),
    (32, 64, 16, 1, 4, 3),
    (32, 32, 16, 2, 2, 4),
)


class MaskedTiles(Family[P, C]):
    """A thread block computes one tile of the result. It finds the live blocks of its mask rows word by word.

    Tiles take their rows in the mask's order, rows with most live blocks first. If a tile spans several mask rows and a
    block is live in only some of them, the kernel fills the other rows with zeros. It reads no dead block.
    """

    size_names = ("m", "k", "n")
    packed_names = ()
    template = "masked/mma_masked.cu.j2"
    source = (
        "Lo: Efficient Sparse Training with Structured Dropout (block-sparse products that skip dropped blocks); "
        "mma.sync with cp.async stages: NVIDIA, PTX ISA"
    )

    def scope(self, problem: P) -> Iterator[Constraint]:
        yield batch_in_grid(problem)
        yield Constraint(
            problem.factor_type is FactorType.SAME,
            "8-bit factors are multiplied by warpgroups (compute capability 9.0)",
        )

    def constraints(self, problem: P, config: C, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, side = config, Side.of(problem)
        yield from on_tensor_cores(c, device, "rows", "columns")
        threads = threads_of(c)
        yield Constraint(threads >= 2 * WARP, f"two warps at least ({threads} threads)")
        mask_rows, step_blocks = max(1, c.tile_m // side.row_block), max(1, c.step // side.inner_block)
        noted = mask_rows * step_blocks * c.stages
        yield Constraint(
            side.samples or noted <= 64,
            f"64 bits tell which rows of blocks are live in steps on their way ({noted})",
        )
        products = c.step * problem.dtype.itemsize // PRODUCT_BYTES
        yield Constraint(
            not c.ahead or products > 1,
            f"fragments are loaded ahead in steps of two products or more ({products})",
        )
        yield enough_registers(sums_of(c) + EXTRA_REGISTERS, max(threads, 128), at_a_time=8)
        yield shared_memory_fits("stages", self._shared_bytes(problem, c), device)

    def is_worth_trying(self, problem: P, config: C, device: Device) -> bool:
        """True unless a tile is twice as large as the result, or a thread has fewer than 16 or more than 128 sums. It
        rests on arithmetic: padding, loads for each product, and registers.
        """
        side = Side.of(problem)
        is_large = config.tile_n >= 2 * max(16, side.columns) or config.tile_m >= 2 * max(16, side.rows)
        return not is_large and 16 <= sums_of(config) <= 128

    def constants(self, problem: P, config: C) -> Mapping[str, Value]:
        side = Side.of(problem)
        return {
            "dtype": problem.dtype.value,
            "entry": self.entry,
            **side.constants,
            "samples": side.samples,
            **({"fills": side.fills} if side.samples else {}),
            "transposes": side.transposes,
            "by_columns": side.by_columns,
            "epilogue": problem.epilogue.value if isinstance(problem, DsdProblem) else "none",
            "even_columns": side.columns % 2 == 0,
            "vector_a": self._vectors(problem)[0],
            "vector_b": self._vectors(problem)[1],
            **batch_constants(problem),
        }

    def pack(self, problem: P, config: C, matrix: CsrMatrix) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz)

    def launch(self, problem: P, config: C, sizes: Mapping[str, int], device: Device) -> Launch:
        side = Side.of(problem)
        return Launch(
            grid=(self._row_tiles(side, config) * ceil_div(side.columns, config.tile_n), 1, problem.batch),
            block=(threads_of(config), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def heuristic(self, problem: P, features: Features, device: Device) -> C:
        """The usual tiles with the least expected time; of those that are expected to take as long, the largest."""
        typical = device.typical_rated
        some = self._usual(problem)
        fitting = [c for c in some if self._shared_bytes(problem, c) <= device.shared_memory_per_block]
        return min(fitting or some[-1:], key=lambda c: self.analytic_us(problem, features, c, typical))

    def _usual(self, problem: P) -> list[C]:
        """Tiles from large to small, with steps no longer than a block along the contraction."""
        side = Side.of(problem)
        starts: tuple[tuple[int, int, int, int, int, int], ...]
        if problem.dtype is DType.FLOAT32:
            starts = FLOAT32
        elif side.samples:
            starts = (SQUARE if side.inner_block >= SQUARE[1] else WIDE, SQUARE, *SMALL)
        else:
            starts = (WIDE if side.row_block >= WIDE[0] else LOW, SQUARE, *SMALL)
        size, found = problem.dtype.itemsize, []
        # Loads that pass through registers are faster all at once than between products.
        can_wait = min(self._vectors(problem)) * size >= LEAST_ASYNC
        for tile_m, tile_n, longest, warps_m, warps_n, stages in starts:
            step = longest if side.samples else min(longest, side.inner_block)
            config = self.config_type(
                tile_m=tile_m,
                tile_n=tile_n,
                step=step,
                warps_m=warps_m,
                warps_n=warps_n,
                stages=min(5, stages + (step < longest)),
                ahead=problem.dtype is not DType.FLOAT32 and can_wait and step * size > PRODUCT_BYTES,
            )
            found.append(config)
        return found

    def published(self, problem: P) -> tuple[C, ...]:
        """Tiles of masks of 128 × 128 blocks (Lo, section 4.1), whose contraction goes in steps of half a block (3.3).

        Products have 16-bit elements (mixed precision, figure 4) and no pipeline (5.1): two stages are the fewest here.
        The paper leaves N_blk open, which is 128 like M_blk and K_blk, and so are warps.
        """
        if problem.dtype.itemsize != 2 or (problem.block.rows, problem.block.columns) != (128, 128):
            return ()
        return (self.config_type(tile_m=128, tile_n=128, step=64, warps_m=2, warps_n=2, stages=2),)

    def analytic_us(self, problem: P, features: Features, config: C, device: Device) -> float:
        """Waves of resident blocks, each as long as the arrivals of its stages and the products of all its blocks."""
        c, rates, side, share = config, device.expected_rates, Side.of(problem), problem.density.share
        tiles = self._row_tiles(side, c) * ceil_div(side.columns, c.tile_n) * problem.batch
        mask_rows = max(1, c.tile_m // side.row_block)  # mask rows of a tile
        if side.samples:
            blocks = mask_rows * max(1, c.tile_n // side.inner_block)
            live = tiles * (1 - (1 - share) ** blocks)  # a tile is live if any of its blocks is
            mean = longest = of_a = 1.0
        else:
            live = float(tiles)
            mean = 1 - (1 - share) ** mask_rows  # a step is live if it is in any of a tile's mask rows
            longest = min(1.0, mean + 2 * math.sqrt(mean * (1 - mean) * side.inner_block / side.inner))
            of_a = share / mean  # live fraction of such a step
        rounds = max(1, math.ceil(live / device.multiprocessors))
        registers = sums_of(c) + EXTRA_REGISTERS
        waves = ceil_div(
            rounds, resident_blocks(threads_of(c), registers, self._shared_bytes(problem, c), device)
        )
        arrival = ARRIVAL_US / (c.stages - 1) + self._narrow_us(problem, c)
        arriving = arrival * side.inner / c.step * (waves * mean + longest - mean)
        rate = REACHED * rates.tensor_products_per_us(problem.dtype) / device.multiprocessors
        if problem.dtype is DType.FLOAT32:
            rate *= TF32_PRODUCTS
        computing = c.tile_m * c.tile_n / rate
        lines = c.tile_m * of_a + c.tile_n
        loading = lines * problem.dtype.itemsize / (COPIED_PER_CYCLE * rates.clock_mhz)
        busy = max(computing, loading) * side.inner * (rounds * mean + longest - mean)
        steps_us = arriving + busy
        if c.step * problem.dtype.itemsize <= PRODUCT_BYTES:
            steps_us /= SHORT_STEP
        moved = problem.cost(0).bytes / rates.copy_bytes_per_us
        return rates.launch_us + START_US + max(moved, steps_us)

    @staticmethod
    def _vectors(problem: P) -> tuple[int, int]:
        """Elements of A and of B that a load moves."""
        side = Side.of(problem)
        return (
            widest_vector(side.inner if side.a_by_inner else side.rows, problem.dtype),
            widest_vector(side.inner if side.b_by_inner else side.columns, problem.dtype),
        )

    def _narrow_us(self, problem: P, config: C) -> float:
        """Microseconds that a step takes longer because its loads move less than 16 bytes."""
        c, dtype, side = config, problem.dtype, Side.of(problem)
        elements = (min(c.tile_m, side.rows) * c.step, min(c.tile_n, side.columns) * c.step)
        own = zip(self._vectors(problem), elements, strict=True)
        wide = [(LOAD_BYTES // dtype.itemsize, loaded) for loaded in elements]
        narrow_us, wide_us = (
            step_us(dtype, loads, threads_of(c), c.stages, begun_us=BEGUN_US) for loads in (own, wide)
        )
        products = c.step * dtype.itemsize // PRODUCT_BYTES
        through_registers = min(self._vectors(problem)) * dtype.itemsize < LEAST_ASYNC
        return (narrow_us - wide_us) * (products if c.ahead and through_registers else 1)

    @staticmethod
    def _row_tiles(side: Side, config: MaskedTilesConfig) -> int:
        """The number of tiles along the rows; a tile spans several mask blocks, or a mask block several tiles."""
        if config.tile_m >= side.row_block:
            return ceil_div(side.mask_rows, config.tile_m // side.row_block)
        return side.mask_rows * (side.row_block // config.tile_m)

    @staticmethod
    def _shared_bytes(problem: P, config: C) -> int:
        """The bytes of all pipeline stages."""
        side, size = Side.of(problem), problem.dtype.itemsize

        def tile(extent: int, by_inner: bool) -> int:
            rows, row = (extent, config.step) if by_inner else (config.step, extent)
            return rows * (row * size + PITCH_BYTES)

        return config.stages * (tile(config.tile_m, side.a_by_inner) + tile(config.tile_n, side.b_by_inner))
