"""SpMM on tensor cores: nonzeros are put to their places in dense tiles in shared memory, and those are multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants, batch_in_grid
from sparsegen.kernels.layouts.limits import (
    enough_registers,
    shared_memory_fits,
    tiles_in_grid,
    warpgroups_capable,
)
from sparsegen.kernels.layouts.loads import widest_vector
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.mma_spmm_config import (
    LARGE_TILE_CONFIG,
    LIKELY_CONFIGS,
    NARROW_TILE_CONFIG,
    MmaSpmmConfig,
)
from sparsegen.kernels.spmm.mma_spmm_time import modelled_us
from sparsegen.kernels.spmm.tensor_tiles import (
    STEP,
    fills_blocks,
    stored_begins,
    stored_nonzeros,
    stored_tiles,
    swizzled_places,
    tile_lengths,
    tile_lists,
    whole_tiles_requirement,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.system.integers import ceil_div

A_BUFFERS = 3  # tiles of A that nonzeros are put into: one is multiplied, one filled, one cleared


class MmaSpmm(Family[SpmmProblem, MmaSpmmConfig]):
    """Blocks expand tiles of A in shared memory and multiply them by tiles of B with mma.sync or wgmma.

    Where A's nonzeros fill blocks, its tiles can be stored and copied whole instead. Tiles without any nonzero are
    left out. In the others zeros are multiplied like everything else, so that an infinity or NaN of B makes NaN in
    rows that have no nonzero there. float32 is split into two TF32 numbers, and three of the four products are added
    up, so that about 21 of its 24 bits count.
    """

    name = "mma_spmm"
    summary = "SpMM on tensor cores: A's nonzeros are expanded to dense tiles in shared memory"
    source = (
        "load as sparse, compute as dense: Xia et al., Flash-LLM, VLDB 2023, section 4; float32 from three TF32 "
        "products: Ootomo and Yokota, IJHPCA 2022"
    )
    size_names = ("m", "k", "n", "panels")
    packed_names = ("tile_counts", "tiles", "places", "values")
    multiplies_zeros = True

    def batch_size_names(self, problem: SpmmProblem) -> tuple[str, ...]:
        return ("stored",) if problem.value_sets > 1 else ()

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)

    def constraints(
        self, problem: SpmmProblem, config: MmaSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, itemsize = config, problem.dtype.itemsize
        chunk = 16 // itemsize
        yield from on_tensor_cores(c, device, "rows", "columns", unit_columns=8)
        yield Constraint(
            c.tile_k % (2 * chunk * c.warps_k) == 0,
            f"each of warps_k ({c.warps_k}) warps takes whole steps of {2 * chunk} of tile_k ({c.tile_k}) columns",
        )
        if c.warpgroups:
            yield from self._warpgroup_constraints(problem, c, device)
        yield Constraint(
            c.tile_m * c.tile_k <= 65536,
            f"a place in a tile of {c.tile_m} by {c.tile_k} elements has 16 bits",
        )
        threads = c.threads
        row_chunks = (c.tile_n if problem.layout is Layout.ROW else c.tile_k) // chunk
        yield Constraint(
            threads % max(1, row_chunks) == 0,
            f"the {row_chunks} 16-byte chunks of a row of B's tile go to different ones of {threads} threads",
        )
        yield Constraint(threads <= 1024, f"a block has {threads} threads, at most 1024")
        yield enough_registers(self._registers(problem, c), threads * c.resident_blocks)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("tiles", shared, device)
        yield tiles_in_grid("n / tile_n", problem.n, c.tile_n)

    def requirements(
        self, problem: SpmmProblem, features: Features, config: MmaSpmmConfig
    ) -> Iterator[Constraint]:
        if config.storage == "tiles":
            yield whole_tiles_requirement(features)

    @staticmethod
    def _warpgroup_constraints(
        problem: SpmmProblem, config: MmaSpmmConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield warpgroups_capable(device)
        if problem.dtype is DType.FLOAT32:
            yield Constraint(c.storage == "tiles", "warpgroups multiply float32 of whole tiles")
            yield Constraint(
                c.warps_m == 1 and c.warps_k == 1 and c.warps_n % 4 == 0 and c.tile_n == 16 * c.warps_n,
                f"a warpgroup's four of warps_n ({c.warps_n}) take 64 of tile_n ({c.tile_n}) columns, and all rows",
            )
            yield Constraint(c.tile_k == 32, f"tile_k ({c.tile_k}) is a row of 128 bytes")
            return
        yield Constraint(
            c.storage == "nonzeros", "warpgroups multiply what was expanded; whole tiles are for block_spmm"
        )
        yield Constraint(
            c.warps_m % 4 == 0 and c.tile_m == 16 * c.warps_m,
            f"a warpgroup's four of warps_m ({c.warps_m}) take 64 of tile_m ({c.tile_m}) rows",
        )
        yield Constraint(c.tile_k % 64 == 0, f"tile_k ({c.tile_k}) is made of rows of 128 bytes")
        yield Constraint(
            problem.layout is Layout.COLUMN or c.tile_n % (64 * c.warps_n) == 0,
            f"each of warps_n ({c.warps_n}) warpgroups takes rows of 128 bytes of tile_n ({c.tile_n}), row-major",
        )

    @staticmethod
    def _registers(problem: SpmmProblem, config: MmaSpmmConfig) -> int:
        """Estimates a thread's registers: sums, fragments of operands (warpgroups have none), nonzeros in flight,
        addresses.
        """
        c, itemsize = config, problem.dtype.itemsize
        rows, columns = c.tile_m // (16 * c.warps_m), c.tile_n // (8 * c.warps_n)
        if c.warpgroups and problem.dtype is DType.FLOAT32:  # the operands of two tiles, and the sums of one
            return 4 * rows * columns * 2 + 64 + 40
        operands = 0 if c.warpgroups else (2 if problem.dtype is DType.FLOAT32 else 1) * (4 + 2 * columns)
        nonzeros = c.prefetch * STEP * (2 + itemsize) // 4 if c.storage == "nonzeros" else 0
        return 4 * rows * columns + operands + nonzeros + 40

    @staticmethod
    def _shared_bytes(problem: SpmmProblem, config: MmaSpmmConfig) -> int:
        """The tiles, or what is staged after them: the sums of other warps, and the tile of C."""
        c, itemsize = config, problem.dtype.itemsize
        of_a = A_BUFFERS if c.storage == "nonzeros" else c.stages
        if c.warpgroups and problem.dtype is DType.FLOAT32:
            of_a += 2  # what TF32 leaves of A's tiles
        tiles = (of_a * c.tile_m + c.stages * c.tile_n) * c.tile_k * itemsize
        sums = (c.warps_k - 1) * c.tile_m * c.tile_n * 4
        rows, columns = (c.tile_m, c.tile_n) if problem.layout is Layout.ROW else (c.tile_n, c.tile_m)
        return max(tiles, sums, rows * (columns * itemsize + 16))

    def is_worth_trying(self, problem: SpmmProblem, config: MmaSpmmConfig, device: Device) -> bool:
        """True for tiles that fill the device and are no smaller than that needs, with nearly square parts for each
        warp and loads ahead that cover a tile of A. It rests on arithmetic about padding, loads and waves;
        docs/notes/tensor-cores.md has the measurements of the tiles that it keeps.
        """
        c, threads = config, config.threads
        if (
            c.tile_n >= 2 * max(8, problem.n)
            or c.tile_m >= 2 * max(16, problem.m)
            or c.tile_k >= 2 * problem.k
        ):
            return False
        # Narrow tiles leave out more if they are stored whole.
        row_bytes = (128, 256, 512) if c.storage == "nonzeros" else (64, 128, 256, 512)
        if threads not in (128, 256, 512) or c.tile_k * problem.dtype.itemsize not in row_bytes:
            return False
        if c.resident_blocks * threads > 512:
            return False
        # Each warp's part of the tile is near a square: fragments of both operands are used often.
        four = 4 if c.warpgroups else 1  # of float32 they share columns
        by_column = problem.dtype is DType.FLOAT32
        rows = c.tile_m // c.warps_m * (1 if by_column else four)
        columns = c.tile_n // c.warps_n * (four if by_column else 1)
        if rows > 4 * columns or (columns > 4 * rows) or (rows * columns < 512 and c.tile_n > 16):
            return False
        # A thread takes between an eighth and all of its part of a full tile of A ahead; of whole tiles nothing.
        full = c.tile_m * c.tile_k // (STEP * threads)
        ahead = c.stages == 3 and full <= 8 * c.prefetch <= max(8, 8 * full)
        if not (ahead if c.storage == "nonzeros" else c.prefetch == 1):
            return False
        # Enough blocks to fill the device, and no smaller tiles than that needs.
        blocks = self._blocks(problem, c.tile_m, c.tile_n)
        area = c.tile_m * c.tile_n
        if 4 * blocks < 3 * device.multiprocessors:
            return area <= 1024
        return area >= (8192 if c.storage == "nonzeros" else 4096) or blocks <= 8 * device.multiprocessors

    def constants(self, problem: SpmmProblem, config: MmaSpmmConfig) -> Mapping[str, Value]:
        rows = problem.layout is Layout.ROW
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "divides_k": problem.k % config.tile_k == 0,
            "divides_n": problem.n % config.tile_n == 0,
            "vector_b": widest_vector(problem.n if rows else problem.k, problem.dtype),
            "vector_c": widest_vector(problem.n if rows else problem.m, problem.dtype),
            **batch_constants(problem),
        }

    def pack(self, problem: SpmmProblem, config: MmaSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        c = config
        place_of = swizzled_places(c.tile_m, c.tile_k, 16 // problem.dtype.itemsize)
        lengths = tile_lengths(matrix, c.tile_m, c.tile_k)
        panels = lengths.shape[1]
        places = np.zeros(1, dtype=np.uint16)
        if c.storage == "tiles":
            counts, tiles = tile_lists(lengths > 0, 1)
            begins, stored = stored_begins(lengths, c.tile_m * c.tile_k)
            of_tile = place_of.reshape(c.tile_m, c.tile_k)
            source, values = stored_tiles(matrix, begins, stored, of_tile, problem.dtype)
        else:
            counts, tiles = tile_lists(lengths, STEP)
            source, places, values = stored_nonzeros(
                matrix, lengths, c.tile_m, c.tile_k, place_of, problem.dtype
            )
        return Packed(
            arrays={
                "tile_counts": empty_as_one(counts),
                "tiles": empty_as_one(tiles),
                "places": empty_as_one(places),
                "values": values,
            },
            sizes={"panels": panels, **({"stored": source.size} if problem.value_sets > 1 else {})},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
        )

    def launch(
        self, problem: SpmmProblem, config: MmaSpmmConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(ceil_div(problem.m, config.tile_m), ceil_div(problem.n, config.tile_n), problem.batch),
            block=(config.threads, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: MmaSpmmConfig, device: Device
    ) -> float:
        return modelled_us(problem, features, config, device, self._shared_bytes(problem, config))

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> MmaSpmmConfig:
        """The config that should be fastest of one that goes by the problem's size and of some that often are."""
        by_size = self._by_size(problem, features, device)
        likely = (self._with_prefetch(c, features) for c in LIKELY_CONFIGS[problem.dtype.itemsize])
        ordered = self.by_time(problem, features, (by_size, *likely), device)
        suited = (c for c in ordered if c is by_size or self.suits(problem, features, c, device))
        return next(suited)

    def _by_size(self, problem: SpmmProblem, features: Features, device: Device) -> MmaSpmmConfig:
        """Tiles of nonzeros, small enough that they fill the device."""
        enough = 3 * device.multiprocessors // 4
        tile_n = min(128, max(8, _power_of_two(problem.n)))
        tile_m = 64
        while tile_m > 16 and self._blocks(problem, tile_m, tile_n) < enough:
            tile_m //= 2
        while tile_n > 32 and self._blocks(problem, tile_m, tile_n) < device.multiprocessors // 2:
            tile_n //= 2
        row_bytes = 512 if tile_m * tile_n <= 1024 else 256
        widest = min(row_bytes // problem.dtype.itemsize, max(16, _power_of_two(problem.k)))
        for tile_k in (width for width in (widest, widest // 2, widest // 4) if width >= 16):
            for warps_k in (4, 2, 1):
                config = MmaSpmmConfig(
                    tile_m=tile_m,
                    tile_n=tile_n,
                    tile_k=tile_k,
                    warps_m=max(1, tile_m // 32),
                    warps_n=max(1, tile_n // 64),
                    warps_k=warps_k,
                )
                config = self._with_prefetch(config, features)
                if config.threads <= 256 and self.is_valid(problem, config, device):
                    return config
        return MmaSpmmConfig()

    def alternatives(
        self, problem: SpmmProblem, features: Features, device: Device
    ) -> tuple[MmaSpmmConfig, ...]:
        """Returns configs of large and small whole tiles: features do not tell how large blocks are."""
        whole_tiles = (LARGE_TILE_CONFIG, NARROW_TILE_CONFIG) if fills_blocks(features) else ()
        return tuple(c for c in whole_tiles if self.is_valid(problem, c, device))

    def _with_prefetch(self, config: MmaSpmmConfig, features: Features) -> MmaSpmmConfig:
        """Returns the config with enough prefetched vectors for a thread's nonzeros of a tile a little fuller than
        average.
        """
        if config.storage == "tiles":
            return config
        vectors = config.tile_m * config.tile_k * features.density / (STEP * config.threads)
        return replace(config, prefetch=min(8, _power_of_two(1.05 * vectors)))

    @staticmethod
    def _blocks(problem: SpmmProblem, tile_m: int, tile_n: int) -> int:
        return problem.batch * ceil_div(problem.m, tile_m) * ceil_div(problem.n, tile_n)


def _power_of_two(x: float) -> int:
    """The least power of two that is at least x, and at least 1."""
    return 1 << max(0, math.ceil(x) - 1).bit_length()


FAMILY = MmaSpmm()
