"""Masked convolutions of any shape: tiles of outputs through shared memory, in float32, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    UNIT_OUTPUTS,
    MaskedConvolution,
    filter_tiles,
    geometry_constants,
    live_share,
    result_constants,
    units_of,
    units_of_image,
)
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_in_grid
from sparsegen.kernels.layouts.limits import (
    BLOCKS_PER_MULTIPROCESSOR,
    MAX_GRID_Y,
    SCHEDULERS,
    THREADS_PER_MULTIPROCESSOR,
)
from sparsegen.kernels.layouts.loads import SECTOR, partial_stores_us
from sparsegen.matrix.features import Features
from sparsegen.operators import MaskedConv2dProblem, MaskOf, Rest
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

THREAD_FILTERS = 4
START_US = 4.2
# Fitted to drawn problems on an H200. Where few blocks are live, microseconds of a thread's load, and of a step beside
# its loads. Where many are, instructions of a load, and of finding the block of the mask that a pixel lies in.
LOADED_US, STEP_US = 0.28, 0.9
LOAD_INSTRUCTIONS, FIND_INSTRUCTIONS = 85, 20


@dataclass(frozen=True)
class TileConvConfig(Config):
    """One point of the tuning space of `TileConv`."""

    tile_n: int = tunable(32, (16, 32, 64), "filters per block")
    step: int = tunable(16, (8, 16, 32), "channels of a tap in shared memory")
    thread_pixels: int = tunable(4, (2, 4, 8, 16), "outputs of a thread, each of 4 filters")


class TileConv(MaskedConvolution[TileConvConfig]):
    """A block computes 8 × 8 outputs of some filters, tap by tap; taps that meet no live block are left out."""

    name = "tile_conv"
    summary = "masked convolution of any shape: tiles of 8 x 8 outputs, tap by tap, in float32"
    source = (
        "Ren et al., SBNet, CVPR 2018 (active blocks alone are computed); Shah and Nair, Block Sparse Convolution; "
        "implicit GEMM: Chetlur et al., cuDNN, 2014"
    )
    size_names = (
        *("height", "width", "channels", "filters"),
        *("out_height", "out_width", "mask_words", "mask_columns"),
    )

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)
        tiles = filter_tiles(problem, tile_n=16)
        yield Constraint(tiles <= MAX_GRID_Y, f"a grid has at most {MAX_GRID_Y} tiles of filters ({tiles})")

    def constraints(
        self, problem: MaskedConv2dProblem, config: TileConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        threads = self._threads(config)
        yield Constraint(threads >= 32, f"a block has a warp at least ({threads} threads)")

    def is_worth_trying(self, problem: MaskedConv2dProblem, config: TileConvConfig, device: Device) -> bool:
        """True unless a tile or step is twice as large as its group's filters or channels. It rests on arithmetic: such
        tiles are mostly padding.
        """
        p = problem
        few_filters = config.tile_n >= 2 * max(16, p.filters // p.groups.count)
        return not few_filters and config.step < 2 * max(8, p.group_channels)

    def constants(self, problem: MaskedConv2dProblem, config: TileConvConfig) -> Mapping[str, Value]:
        p = problem
        return {**geometry_constants(p), **result_constants(p), "layout": p.layout.value}

    def launch(
        self, problem: MaskedConv2dProblem, config: TileConvConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        p = problem
        return Launch(
            grid=(units_of_image(p), filter_tiles(p, config.tile_n), p.batch),
            block=(self._threads(config), 1, 1),
        )

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: TileConvConfig, device: Device
    ) -> float:
        p, c, rates, threads = problem, config, device.expected_rates, self._threads(config)
        blocks = live_share(p) * units_of(p) * filter_tiles(p, c.tile_n)
        steps = p.taps * ceil_div(p.group_channels, c.step)
        pixels, weights = UNIT_OUTPUTS * c.step / threads, c.tile_n * c.step / threads  # that a thread loads
        finding = FIND_INSTRUCTIONS * pixels if p.mask_of is MaskOf.ANY_INPUT else 0.0
        # A product takes an instruction, and so does each of its factors that comes from shared memory.
        products = c.step * ((THREAD_FILTERS + 1) * c.thread_pixels + THREAD_FILTERS)
        of_thread = steps * (LOAD_INSTRUCTIONS * (pixels + weights) + finding + products)
        issuing = blocks * threads / WARP * of_thread / (SCHEDULERS * device.cycles_per_us)
        resident = min(BLOCKS_PER_MULTIPROCESSOR, THREADS_PER_MULTIPROCESSOR // threads)
        waves = max(1.0, blocks / (resident * device.multiprocessors))
        dependent = 2 if p.mask_of is MaskOf.ANY_INPUT else 1  # the mask's word comes before the pixel
        waiting = waves * steps * (STEP_US + LOADED_US * dependent * (pixels + weights))
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        # Lanes of a warp store some filters of some pixels, each filter to a plane or each pixel to a row of its own.
        if p.layout.has_planes:
            together = min(UNIT // c.thread_pixels, WARP * THREAD_FILTERS // c.tile_n)
        else:
            together = SECTOR // (THREAD_FILTERS * p.dtype.itemsize)
        stored = p.result(0).nbytes / p.dtype.itemsize * (1.0 if p.rest is Rest.FILLED else live_share(p))
        storing = partial_stores_us(stored / max(1, together), device)
        return rates.launch_us + START_US + max(issuing, waiting) + max(moving, storing)

    def heuristic(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> TileConvConfig:
        """Many threads, which wait, with the tile and step that should take the least time."""
        some = (
            TileConvConfig(tile_n, step, thread_pixels=2) for tile_n in (16, 32, 64) for step in (16, 8, 32)
        )
        return self.fastest(problem, features, some, device)

    @staticmethod
    def _threads(config: TileConvConfig) -> int:
        return UNIT_OUTPUTS // config.thread_pixels * (config.tile_n // THREAD_FILTERS)


FAMILY = TileConv()
