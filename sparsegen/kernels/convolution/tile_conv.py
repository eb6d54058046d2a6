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
    units_of_image,
)
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_in_grid
from sparsegen.kernels.layouts.limits import MAX_GRID_Y
from sparsegen.matrix.features import Features
from sparsegen.operators import MaskedConv2dProblem
from sparsegen.system.integers import round_up

THREAD_FILTERS = 4
START_US = 4.2
REACHED = 0.21  # of the float units' rate: 1,109 µs on an H100, 128 channels, 8 images of 256², 10 % live
LOADED_US = 0.39  # one load after the other: drawn problems on an H200, few blocks of which were live
FLOP_PER_CYCLE = 256  # FLOP of a multiprocessor in a cycle


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
        p, rates = problem, device.expected_rates
        outputs = p.batch * p.out_height * p.out_width
        # Tiles and steps that filters and channels do not fill take their whole time.
        filters = filter_tiles(p, config.tile_n) * config.tile_n
        channels = round_up(p.group_channels, config.step)
        flop = 2 * live_share(p) * outputs * filters * channels * p.taps
        computing = flop / (REACHED * FLOP_PER_CYCLE * device.cycles_per_us)
        loads = (UNIT_OUTPUTS + config.tile_n) * config.step / self._threads(config)
        waiting = p.taps * channels / config.step * loads * LOADED_US
        return (
            rates.launch_us + START_US + max(computing, waiting) + p.cost(0).bytes / rates.copy_bytes_per_us
        )

    def heuristic(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> TileConvConfig:
        """Tiles no wider than a group's filters, steps no longer than its channels, and many threads, which wait."""
        p = problem
        of_group = p.filters // p.groups.count
        tile_n = 64 if of_group > 32 else 32 if of_group > 16 else 16
        return TileConvConfig(tile_n=tile_n, step=8 if p.group_channels <= 8 else 16, thread_pixels=2)

    @staticmethod
    def _threads(config: TileConvConfig) -> int:
        return UNIT_OUTPUTS // config.thread_pixels * (config.tile_n // THREAD_FILTERS)


FAMILY = TileConv()
