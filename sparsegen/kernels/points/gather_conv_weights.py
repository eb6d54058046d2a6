"""``submanifold_conv3d_weights``: the gradient by the weights, tap by tap over the live pairs of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.loads import widest_vector
from sparsegen.kernels.layouts.warp_tiles import sums_of, threads_of
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
from sparsegen.operators import SubmanifoldConv3dWeightsProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

WINDOW = 1024  # places whose live pairs a block lists at a time
PAIR_BYTES = 8
# Microseconds in which a block lists the live pairs of a window, and in which the last block of a tile adds a sum.
WINDOW_US, SUM_US = 3.3, 0.05
MAX_GRID = 2**31 - 1
MOST_SCRATCH = 1 << 30  # bytes of partial sums


@dataclass(frozen=True)
class GatherConvWeightsConfig(GatheredTilesConfig):
    """One point of the tuning space of `GatherConvWeights`."""

    parts: int = tunable(
        16,
        (1, 4, 16, 64),
        "blocks that share the points of a tap; their sums are added up in order",
        packs=True,
    )


class GatherConvWeights(GatheredTiles[SubmanifoldConv3dWeightsProblem, GatherConvWeightsConfig]):
    """A block lists the live pairs of a tap in its part of the points, and multiplies the rows that these name."""

    name = "gather_conv_weights"
    summary = "gradient of a submanifold convolution by its weights: for each tap a product of gathered rows"
    scratch_names = ("arrived", "partial_sums")

    def scope(self, problem: SubmanifoldConv3dWeightsProblem) -> Iterator[Constraint]:
        yield from GatheredTiles.scope(self, problem)
        blocks = self._tiles(problem, GatherConvWeightsConfig(tile_m=32, tile_n=16))
        yield Constraint(blocks <= MAX_GRID, f"a grid has at most {MAX_GRID} blocks along x ({blocks})")

    def constraints(
        self, problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from GatheredTiles.constraints(self, problem, config, device)
        taken = self._scratch(problem, config)["partial_sums"]
        yield Constraint(
            taken <= MOST_SCRATCH, f"partial sums ({taken} bytes) take at most {MOST_SCRATCH} bytes"
        )

    def is_worth_trying(
        self, problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig, device: Device
    ) -> bool:
        """True if each part has at least a step of points, and the tile is of a useful size (`GatheredTiles`)."""
        enough = problem.points >= config.parts * config.step or config.parts == 1
        return enough and GatheredTiles.is_worth_trying(self, problem, config, device)

    def extent(self, problem: SubmanifoldConv3dWeightsProblem) -> tuple[int, int]:
        return problem.filters, problem.channels

    def constants(
        self, problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig
    ) -> Mapping[str, Value]:
        p = problem
        return {
            "dtype": p.dtype.value,
            "taps": p.filter_volume.taps,
            "vector_a": widest_vector(p.filters, p.dtype),
            "vector_b": widest_vector(p.channels, p.dtype),
            "window": WINDOW,
            "a_by_inner": False,
            "b_by_inner": False,
        }

    def pack(
        self, problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz, scratch=self._scratch(problem, config))

    def launch(
        self,
        problem: SubmanifoldConv3dWeightsProblem,
        config: GatherConvWeightsConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(self._tiles(problem, config), config.parts, 1),
            block=(threads_of(config), 1, 1),
            shared_memory_bytes=self._dynamic_bytes(problem, config),
        )

    def heuristic(
        self, problem: SubmanifoldConv3dWeightsProblem, features: Features, device: Device
    ) -> GatherConvWeightsConfig:
        """The config with the least expected time among tiles no larger than the filters and channels."""
        p = problem
        some = (
            GatherConvWeightsConfig(
                tile_m=tile_m, tile_n=tile_n, step=step, warps_m=warps_m, warps_n=warps_n, parts=parts
            )
            for tile_m, warps_m in ((32, 2), (64, 2), (64, 4), (128, 4))
            for tile_n, warps_n in ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4))
            for step in (16, 32, 64)
            for parts in (1, 4, 16, 64)
        )
        likely = (c for c in some if self.is_worth_trying(p, c, device))
        return self.fastest(p, features, self.with_smallest(p, likely, device), device)

    def analytic_us(
        self,
        problem: SubmanifoldConv3dWeightsProblem,
        features: Features,
        config: GatherConvWeightsConfig,
        device: Device,
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        tiles = self._tiles(p, c)
        across = round_up(p.filters, c.tile_m) * ceil_div(p.channels, c.tile_n) * c.tile_n
        computing = products_us(device, p.dtype, tiles * c.parts, p.live_taps * across)
        row = (
            ceil_div(p.channels, c.tile_n) * c.tile_m + ceil_div(p.filters, c.tile_m) * c.tile_n
        ) * p.dtype.itemsize
        gathered = p.live_taps * row / device.l2_bytes_per_us
        moved = p.cost(0).bytes / rates.copy_bytes_per_us
        waves, together = self.waves(p, c, tiles * c.parts, device)
        loads = (
            (widest_vector(p.filters, p.dtype), c.tile_m * c.step),
            (widest_vector(p.channels, p.dtype), c.tile_n * c.step),
        )
        # Every point meets the middle tap, so that this tap's blocks take longest.
        points, step_us = p.points / c.parts, self.step_us(p, c, loads, together)
        windows = ceil_div(points, WINDOW)
        longest, mean = (
            windows * WINDOW_US + (pairs / c.step + windows / 2) * step_us
            for pairs in (points, p.live_taps / p.filter_volume.taps / c.parts)
        )
        sums = 0.0
        if c.parts > 1:
            sums = 2 * self._scratch(p, c)["partial_sums"] / device.l2_bytes_per_us
            sums += sums_of(c) * c.parts * SUM_US
        return rates.launch_us + START_US + max(computing, gathered, moved, longest, waves * mean) + sums

    def shared_bytes(self, problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig) -> int:
        counts = 4 * (WINDOW // WARP + 1) + 32  # each array begins at 16 bytes
        return self._dynamic_bytes(problem, config) + counts

    @staticmethod
    def _dynamic_bytes(problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig) -> int:
        """The stages, and the live pairs of a window."""
        c, size = config, problem.dtype.itemsize
        rows = c.step * ((c.tile_m + c.tile_n) * size + 2 * PITCH_BYTES)
        return c.stages * rows + WINDOW * PAIR_BYTES

    def _scratch(
        self, problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig
    ) -> dict[str, int]:
        """Bytes; the counters are for the smallest tiles, since the packing does not depend on tiles."""
        if config.parts == 1:
            return {"arrived": 4, "partial_sums": 4}
        tiles = self._tiles(problem, GatherConvWeightsConfig(tile_m=32, tile_n=16))
        weights = problem.filters * problem.filter_volume.taps * problem.channels
        return {"arrived": 4 * tiles, "partial_sums": 4 * weights * config.parts}

    @staticmethod
    def _tiles(problem: SubmanifoldConv3dWeightsProblem, config: GatherConvWeightsConfig) -> int:
        """Returns the tiles of all taps."""
        of_tap = ceil_div(problem.filters, config.tile_m) * ceil_div(problem.channels, config.tile_n)
        return problem.filter_volume.taps * of_tap


FAMILY = GatherConvWeights()
