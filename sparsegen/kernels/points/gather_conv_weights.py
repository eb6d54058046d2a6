"""``submanifold_conv3d_weights``: the gradient by the weights, tap by tap over the live pairs of points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.loads import widest_vector
from sparsegen.kernels.layouts.warp_tiles import threads_of
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.points.gathered_tiles import (
    PITCH_BYTES,
    GatheredTiles,
    GatheredTilesConfig,
    products_us,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType, SubmanifoldConv3dWeightsProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

WINDOW = 1024  # places whose live pairs a block lists at a time
PAIR_BYTES = 8
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
    template = "points/gather_conv_weights.cu.j2"
    entry = "gather_conv_weights"
    scratch_names = ("arrived", "partial_sums")
    problem_type = SubmanifoldConv3dWeightsProblem
    config_type = GatherConvWeightsConfig

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
        """Tiles no larger than the filters and channels, and parts enough to fill the device a few times."""
        p = problem
        tile_m = 64 if p.filters > 32 else 32
        tile_n = next(n for n in (16, 32, 64) if n >= min(p.channels, 64))
        step = 16 if p.dtype is DType.FLOAT32 else 32
        found = GatherConvWeightsConfig(
            tile_m=tile_m, tile_n=tile_n, step=step, warps_m=2, warps_n=max(1, tile_n // 32), parts=1
        )
        for parts in (4, 16, 64):
            larger = replace(found, parts=parts)
            blocks = self._tiles(p, found) * found.parts
            is_full = blocks >= (2 if parts == 64 else 4) * device.multiprocessors  # parts cost sums, too
            if is_full or p.points < parts * WINDOW or self.broken_constraints(p, larger, device):
                break
            found = larger
        return found

    def analytic_us(
        self,
        problem: SubmanifoldConv3dWeightsProblem,
        features: Features,
        config: GatherConvWeightsConfig,
        device: Device,
    ) -> float:
        p, c = problem, config
        across = round_up(p.filters, c.tile_m) * ceil_div(p.channels, c.tile_n) * c.tile_n
        computing = products_us(device, p.dtype, self._tiles(p, c) * c.parts, p.live_taps * across)
        row = (
            ceil_div(p.channels, c.tile_n) * c.tile_m + ceil_div(p.filters, c.tile_m) * c.tile_n
        ) * p.dtype.itemsize
        gathered = p.live_taps * row / device.l2_bytes_per_us
        sums = 2 * self._scratch(p, c)["partial_sums"] / device.l2_bytes_per_us
        moved = p.cost(0).bytes / device.expected_rates.copy_bytes_per_us
        return max(computing, gathered, moved) + (sums if c.parts > 1 else 0.0)

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
