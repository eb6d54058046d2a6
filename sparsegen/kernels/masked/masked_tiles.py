"""The common part of families of masked products that compute tiles of the result with warp-level tensor cores.

Each of the three operators is a product A · B in which a mask covers the blocks of A or of the result. `Side` describes
an operator's problem as such a product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import CLUSTERS, capable, enough_registers, shared_memory_fits
from sparsegen.kernels.layouts.loads import LEAST_ASYNC
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, sums_of, threads_of
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.kernels.masked.masked_tiles_time import PRODUCT_BYTES, live_tiles, tiles_us
from sparsegen.kernels.masked.shared_tile import SharedTile
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DsdProblem, DType, FactorType, MaskedProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

EXTRA_REGISTERS = 64  # registers that a thread needs besides its sums, about

P = TypeVar("P", bound=MaskedProblem)
C = TypeVar("C", bound=MaskedTilesConfig)

# tile_m, tile_n, warps_m and warps_n: warps of 64 x 64 results where there are enough, as they load the fewest
# fragments for each product, and side by side along the columns, where all of them skip the same steps. Then bytes of a
# step, stages and `ahead`. Of configs that are expected to take as long, but for 4 %, the first one is taken.
TILES = (
    (128, 128, 2, 2),
    (128, 128, 2, 4),
    (64, 256, 1, 4),
    (128, 256, 2, 4),
    (64, 128, 1, 4),
    (128, 64, 1, 2),
    (64, 128, 1, 2),
    (32, 256, 1, 4),
    (32, 256, 1, 2),
    (32, 128, 1, 2),
    (64, 64, 2, 2),
    (32, 64, 1, 4),
    (32, 32, 2, 2),
    (32, 32, 1, 2),
)
STEPS = (
    (128, 3, True),
    (64, 3, True),
    (128, 2, False),
    (64, 2, False),
    (128, 5, True),
    (64, 5, False),
    (32, 3, False),
    (256, 3, False),
)
PARTS = (2, 4, 8)
AS_LONG = 1.04


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
        if c.parts > 1:
            yield capable(device, CLUSTERS)
        products = c.step * problem.dtype.itemsize // PRODUCT_BYTES
        yield Constraint(
            not c.ahead or products > 1,
            f"fragments are loaded ahead in steps of two products or more ({products})",
        )
        yield enough_registers(sums_of(c) + EXTRA_REGISTERS, max(threads, 128), at_a_time=8)
        yield shared_memory_fits("stages", self._shared_bytes(problem, c), device)

    def is_worth_trying(self, problem: P, config: C, device: Device) -> bool:
        """True unless a tile is twice as large as the result, a thread has fewer than 16 or more than 128 sums, or
        there are more parts of tiles than multiprocessors. It rests on arithmetic: padding, loads for
        each product, registers, and waves.
        """
        side, c = Side.of(problem), config
        is_large = c.tile_n >= 2 * max(16, side.columns) or c.tile_m >= 2 * max(16, side.rows)
        return not is_large and 16 <= sums_of(c) <= 128 and self._has_parts(problem, c, device)

    def _has_parts(self, problem: P, config: C, device: Device) -> bool:
        """True if there are multiprocessors for all parts of live tiles, and some steps for each part."""
        side, c = Side.of(problem), config
        live = self._filled_tiles(side, c) * problem.batch * live_tiles(side, c, problem.density.share)
        return c.parts == 1 or (
            live * c.parts <= device.multiprocessors and 4 * c.parts * c.step <= side.inner
        )

    def constants(self, problem: P, config: C) -> Mapping[str, Value]:
        side = Side.of(problem)
        a, b = SharedTile.of_factors(side, config, problem.dtype)
        return {
            "dtype": problem.dtype.value,
            "entry": self.entry,
            **side.constants,
            "samples": side.samples,
            **({"fills": side.fills} if side.samples else {}),
            "transposes": side.transposes,
            "by_columns": side.by_columns,
            "epilogue": problem.epilogue.value if isinstance(problem, DsdProblem) else "none",
            "by_lines": side.by_lines,
            **({"gap_y": SharedTile.of_result(side, config, problem.dtype).gap} if side.by_lines else {}),
            **a.constants("a"),
            **b.constants("b"),
            **batch_constants(problem),
        }

    def pack(self, problem: P, config: C, matrix: CsrMatrix) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz)

    def launch(self, problem: P, config: C, sizes: Mapping[str, int], device: Device) -> Launch:
        side = Side.of(problem)
        return Launch(
            grid=(self._tiles(side, config) * config.parts, 1, problem.batch),
            block=(threads_of(config), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def heuristic(self, problem: P, features: Features, device: Device) -> C:
        """The usual config with the least expected time."""
        typical = device.typical_rated
        times = {c: self.analytic_us(problem, features, c, typical) for c in self._usual(problem, device)}
        fitting = (c for c in sorted(times, key=times.__getitem__) if self.is_valid(problem, c, device))
        least = times[next(fitting, next(iter(times)))]
        same = (c for c, us in times.items() if least <= us <= AS_LONG * least)
        return next((c for c in same if self.is_valid(problem, c, device)), next(reversed(times)))

    def _usual(self, problem: P, device: Device) -> Iterator[C]:
        """Tiles, none of which is mostly padding, with steps of several lengths, whole and in parts."""
        side, size = Side.of(problem), problem.dtype.itemsize
        # Copies of single words, or of chunks to be shifted, are many: faster all at once than between products.
        factors = SharedTile.of_factors(side, self.config_type(), problem.dtype)
        # Each run of a row that is shifted has a chunk more, so that steps of one instruction copy half as much again.
        shifts = any(tile.shifts for tile in factors)
        is_wide = not shifts and all(tile.vector * size > LEAST_ASYNC for tile in factors)
        can_wait = is_wide and problem.dtype is not DType.FLOAT32
        for tile_m, tile_n, warps_m, warps_n in TILES:
            if tile_m >= 2 * max(32, side.rows) or tile_n >= 2 * max(32, side.columns):
                continue
            for step, stages, ahead in STEPS:
                if not 16 <= step // size <= 64 or (step == PRODUCT_BYTES and shifts):
                    continue
                whole = self.config_type(
                    tile_m=tile_m,
                    tile_n=tile_n,
                    step=step // size,
                    warps_m=warps_m,
                    warps_n=warps_n,
                    stages=stages,
                    ahead=ahead and can_wait,
                )
                yield whole
                split = (replace(whole, parts=parts) for parts in PARTS)
                yield from (c for c in split if self._has_parts(problem, c, device))

    def published(self, problem: P) -> tuple[C, ...]:
        """Tiles of masks of 128 × 128 blocks (Lo, section 4.1), whose contraction goes in steps of half a block (3.3).

        Products have 16-bit elements (mixed precision, figure 4) and no pipeline (5.1): two stages are the fewest here.
        The paper leaves N_blk open, which is 128 like M_blk and K_blk, and so are warps.
        """
        if problem.dtype.itemsize != 2 or (problem.block.rows, problem.block.columns) != (128, 128):
            return ()
        return (self.config_type(tile_m=128, tile_n=128, step=64, warps_m=2, warps_n=2, stages=2),)

    def analytic_us(self, problem: P, features: Features, config: C, device: Device) -> float:
        side, c = Side.of(problem), config
        tiles = self._filled_tiles(side, c) * problem.batch
        shared_bytes = self._shared_bytes(problem, c)
        return tiles_us(problem, side, c, tiles, shared_bytes, device)

    @staticmethod
    def _tiles(side: Side, config: MaskedTilesConfig) -> int:
        """The number of tiles; one spans several mask blocks along the rows, or a mask block several tiles."""
        if config.tile_m >= side.row_block:
            row_tiles = ceil_div(side.mask_rows, config.tile_m // side.row_block)
        else:
            row_tiles = side.mask_rows * (side.row_block // config.tile_m)
        return row_tiles * ceil_div(side.columns, config.tile_n)

    @classmethod
    def _filled_tiles(cls, side: Side, config: MaskedTilesConfig) -> int:
        """The number of tiles that have rows: the last block of a mask may reach beyond the result."""
        if config.tile_m >= side.row_block:
            return cls._tiles(side, config)
        return ceil_div(side.rows, config.tile_m) * ceil_div(side.columns, config.tile_n)

    @staticmethod
    def _shared_bytes(problem: P, config: C) -> int:
        """The bytes of all pipeline stages, which make room for sums and results."""
        side, dtype = Side.of(problem), problem.dtype
        stage = sum(tile.nbytes(dtype.itemsize) for tile in SharedTile.of_factors(side, config, dtype))
        results = SharedTile.of_result(side, config, dtype).nbytes(dtype.itemsize) if side.by_lines else 0
        parts = 4 * config.tile_m * config.tile_n if config.parts > 1 else 0
        return max(config.stages * stage, results, parts)
