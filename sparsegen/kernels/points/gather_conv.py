"""``submanifold_conv3d`` as an implicit GEMM over the points of a kernel map."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Value
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.loads import LOAD_BYTES, divided_sectors_us, widest_vector
from sparsegen.kernels.layouts.warp_tiles import threads_of
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.points.gathered_tiles import (
    PITCH_BYTES,
    START_US,
    GatheredTiles,
    GatheredTilesConfig,
    products_us,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.kernel_map import BIN_BITS
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import DType, SubmanifoldConv3dProblem
from sparsegen.system.integers import ceil_div, round_up

MAX_GRID = 2**31 - 1
INDEX_BYTES = 4
BLOCK_US = 0.6  # microseconds of a block beside its steps: its part of the map, and what it stores


@dataclass(frozen=True)
class GatherConvConfig(GatheredTilesConfig):
    """One point of the tuning space of `GatherConv`."""


class GatherConv(GatheredTiles[SubmanifoldConv3dProblem, GatherConvConfig]):
    """A block computes some places of the map's order and some filters; it skips taps that none of its points needs."""

    name = "gather_conv"
    summary = "submanifold convolution: an implicit GEMM over the points of a kernel map"

    def scope(self, problem: SubmanifoldConv3dProblem) -> Iterator[Constraint]:
        yield from GatheredTiles.scope(self, problem)
        blocks = ceil_div(problem.points, 32) * ceil_div(problem.filters, 16)
        yield Constraint(blocks <= MAX_GRID, f"a grid has at most {MAX_GRID} blocks ({blocks})")

    def extent(self, problem: SubmanifoldConv3dProblem) -> tuple[int, int]:
        return problem.points, problem.filters

    def constants(self, problem: SubmanifoldConv3dProblem, config: GatherConvConfig) -> Mapping[str, Value]:
        p = problem
        vector = widest_vector(p.channels, p.dtype)
        return {
            "dtype": p.dtype.value,
            "taps": p.filter_volume.taps,
            "vector_a": vector,
            "vector_b": vector,
            "vector_y": widest_vector(p.filters, p.dtype),
            "epilogue": p.epilogue.value,
            "a_by_inner": True,
            "b_by_inner": True,
        }

    def pack(
        self, problem: SubmanifoldConv3dProblem, config: GatherConvConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz)

    def launch(
        self,
        problem: SubmanifoldConv3dProblem,
        config: GatherConvConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(self._blocks(problem, config), 1, 1),
            block=(threads_of(config), 1, 1),
            shared_memory_bytes=self._dynamic_bytes(problem, config),
        )

    def heuristic(
        self, problem: SubmanifoldConv3dProblem, features: Features, device: Device
    ) -> GatherConvConfig:
        """The config with the least expected time among tiles no wider than the filters; of equals the one with the
        largest tiles.
        """
        p = problem
        widest = next((n for n in (16, 32, 64) if n >= p.filters), 128)
        longest = 32 if p.dtype is DType.FLOAT32 else 64
        some = (
            GatherConvConfig(
                tile_m=tile_m, tile_n=tile_n, step=step, warps_m=warps_m, warps_n=warps_n, stages=stages
            )
            for tile_m, warps_m in ((128, 4), (64, 4), (64, 2), (32, 2), (32, 1))
            for tile_n in (16, 32, 64, 128)
            for step in (16, 32, 64)
            for warps_n in (1, 2, 4)
            for stages in (3, 4, 2)
            if tile_n <= widest and step <= max(16, min(longest, 2 * p.channels - 1))
        )
        likely = (c for c in some if self.is_worth_trying(p, c, device))
        return self.fastest(p, features, self.with_smallest(p, likely, device), device)

    def analytic_us(
        self, problem: SubmanifoldConv3dProblem, features: Features, config: GatherConvConfig, device: Device
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        taps = self._tile_taps(p, c.tile_m)
        across = round_up(p.filters, c.tile_n)
        along = round_up(p.channels, c.step)
        blocks = self._blocks(p, c)
        computing = products_us(device, p.dtype, blocks, round_up(p.points, c.tile_m) * taps * across * along)
        gathered = p.points * taps * p.channels * p.dtype.itemsize * ceil_div(p.filters, c.tile_n)
        gathered /= device.l2_bytes_per_us
        moved = p.cost(0).bytes / rates.copy_bytes_per_us
        waves, together = self.waves(p, c, blocks, device)
        loads = ((widest_vector(p.channels, p.dtype), (c.tile_m + c.tile_n) * c.step),)
        # A block, some of whose points need every tap, and while it runs the others that come to an end.
        whole, steps = p.filter_volume.taps, along / c.step
        longest = BLOCK_US + whole * steps * self.step_us(p, c, loads, max(1.0, together * taps / whole))
        waiting = waves * (BLOCK_US + taps * steps * self.step_us(p, c, loads, together))
        pieces = ceil_div(p.filters, c.tile_n)
        storing = divided_sectors_us(p.points, p.filters * p.dtype.itemsize, pieces, device)
        return rates.launch_us + START_US + math.hypot(computing, gathered, moved, storing, longest, waiting)

    @staticmethod
    def _tile_taps(problem: SubmanifoldConv3dProblem, tile_m: int) -> float:
        """Taps that some place of a tile is expected to need.

        Points lie in an order by the live rows of their filters (`matrix.kernel_map`). A tile has all taps of
        the rows in which its points differ, and of the others the live ones; every middle row is live.
        """
        p, taps = problem, problem.filter_volume.taps
        rows = min(taps // p.filter_volume.sides[2], BIN_BITS)
        live = any_live(p.density.share, taps / rows)
        bits = -sum(share * math.log2(share) for share in (live, 1.0 - live) if share > 0)  # of a row
        alike = min(rows - 1.0, math.log2(max(1.0, p.points / tile_m)) / bits) if bits else rows - 1.0
        return taps / rows * (rows - alike * (1.0 - live))

    def shared_bytes(self, problem: SubmanifoldConv3dProblem, config: GatherConvConfig) -> int:
        lists = (2 * problem.filter_volume.taps + 1 + config.tile_m) * INDEX_BYTES
        return self._dynamic_bytes(problem, config) + lists + 3 * 16  # each list begins at 16 bytes

    @staticmethod
    def _dynamic_bytes(problem: SubmanifoldConv3dProblem, config: GatherConvConfig) -> int:
        """The stages, and the rows of x that the places of a tile read; or rows of the result in their place."""
        c, size = config, problem.dtype.itemsize
        row = c.step * size + PITCH_BYTES
        sources = problem.filter_volume.taps * c.tile_m * INDEX_BYTES
        results = c.tile_m * (c.tile_n * size + LOAD_BYTES)
        return max(c.stages * (c.tile_m + c.tile_n) * row + sources, results)

    @staticmethod
    def _blocks(problem: SubmanifoldConv3dProblem, config: GatherConvConfig) -> int:
        return ceil_div(problem.points, config.tile_m) * ceil_div(problem.filters, config.tile_n)


FAMILY = GatherConv()
