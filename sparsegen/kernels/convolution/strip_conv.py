"""Masked convolutions of few channels and filters: every pixel that is needed is read once, from any memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    MaskedConvolution,
    has_whole_units,
    live_share,
    result_constants,
)
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import shared_memory_fits
from sparsegen.matrix.features import Features
from sparsegen.operators import MaskedConv2dProblem, MaskOf
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.integers import ceil_div, round_up

MOST_CHANNELS, MOST_FILTERS, MOST_WEIGHTS = 8, 32, 4096
OWN_OUTPUTS = 4  # outputs of a row for each thread
LARGEST_GRID = 1 << 31
# Fitted, for a multiprocessor, to 1.2 to 1.4 ms on an H200: 256 images of 512², 3 channels, 5 to 100 % live.
START_US, OUTPUT_CYCLES, REACHED = 3.0, 4.5, 0.3
FLOP_PER_CYCLE = 256
TILE_US, LOADED_US = (
    20.0,
    0.5,
)  # microseconds of a tile that nothing hides, and of each load of a thread: on an H200


@dataclass(frozen=True)
class StripConvConfig(Config):
    """One point of the tuning space of `StripConv`."""

    units_down: int = tunable(4, (1, 2, 4), "rows of units of 8 x 8 outputs in a tile")
    units_across: int = tunable(16, (4, 8, 16), "columns of units in a tile")
    threads: int = tunable(256, (128, 256), "threads per block")


class StripConv(MaskedConvolution[StripConvConfig]):
    """Each block computes a tile of outputs in float32, and loads the pixels that live units read to shared memory
    once.

    The operands may lie in pinned memory of the host. Only these pixels then cross the bus: warps load whole lines of
    32 elements, 8 at a time.
    """

    name = "strip_conv"
    summary = "masked convolution of few channels and filters, which reads each pixel that is needed once"
    source = (
        "Shah and Nair, Block Sparse Convolution (its own configuration has 3 channels and one filter); reads of "
        "pinned memory: NVIDIA, CUDA C++ programming guide, mapped memory"
    )
    size_names = ("height", "width", "out_height", "out_width", "mask_rows", "mask_columns")

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        p, weights = problem, problem.filters * problem.taps * problem.channels
        steps = (p.stride.rows, p.stride.columns, p.dilation.rows, p.dilation.columns, p.groups.count)
        yield Constraint(steps == (1,) * 5, "strides, dilation and groups are 1")
        yield Constraint(not p.layout.has_planes, f"channels are innermost (layout {p.layout})")
        yield Constraint(
            p.channels <= MOST_CHANNELS and p.filters <= MOST_FILTERS and weights <= MOST_WEIGHTS,
            f"there are at most {MOST_CHANNELS} channels ({p.channels}), {MOST_FILTERS} filters ({p.filters}) and "
            f"{MOST_WEIGHTS} weights ({weights})",
        )
        yield Constraint(p.mask_of is not MaskOf.ANY_INPUT, "x is zero outside of a mask of the input")
        least = self._tiles(p, StripConvConfig(units_down=1, units_across=4))
        yield Constraint(least < LARGEST_GRID, "tiles are counted with 31 bits")

    def constraints(
        self, problem: MaskedConv2dProblem, config: StripConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield shared_memory_fits("pixels", self._shared_bytes(problem, config), device)

    def constants(self, problem: MaskedConv2dProblem, config: StripConvConfig) -> Mapping[str, Value]:
        p = problem
        together = p.filters == 1 and p.out_width % OWN_OUTPUTS == 0
        return {
            "dtype": p.dtype.value,
            "channels": p.channels,
            "filters": p.filters,
            "r": p.filter_size.rows,
            "s": p.filter_size.columns,
            "padding_rows": p.padding.rows,
            "padding_columns": p.padding.columns,
            "block_rows": p.mask_block.rows,
            "block_columns": p.mask_block.columns,
            "whole_units": has_whole_units(p),
            **result_constants(p),
            "vector": OWN_OUTPUTS if together and (has_whole_units(p) or p.mask_of is MaskOf.INPUT) else 1,
        }

    def launch(
        self, problem: MaskedConv2dProblem, config: StripConvConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(self._tiles(problem, config), 1, 1),
            block=(config.threads, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: StripConvConfig, device: Device
    ) -> float:
        p, rates = problem, device.expected_rates
        flop = 2 * live_share(p) * p.filters * p.channels * p.taps
        cycles = OUTPUT_CYCLES + flop / (REACHED * FLOP_PER_CYCLE)
        computing = p.batch * p.out_height * p.out_width * cycles / device.cycles_per_us
        waiting = TILE_US + LOADED_US * self._shared_bytes(p, config) / 4 / config.threads
        return (
            rates.launch_us + START_US + max(computing, waiting) + p.cost(0).bytes / rates.copy_bytes_per_us
        )

    def heuristic(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> StripConvConfig:
        """Returns the largest tiles that fit a multiprocessor three times, so that loads of one overlap with sums of
        others.
        """
        some = [
            StripConvConfig(units_down=down, units_across=across)
            for down, across in ((4, 16), (2, 16), (2, 8), (1, 8))
        ]
        limit = device.shared_memory_per_multiprocessor // 3
        fitting = (c for c in some if self._shared_bytes(problem, c) <= limit)
        return next(fitting, StripConvConfig(units_down=1, units_across=4))

    @staticmethod
    def _tiles(problem: MaskedConv2dProblem, config: StripConvConfig) -> int:
        rows, columns = config.units_down * UNIT, config.units_across * UNIT
        return problem.batch * ceil_div(problem.out_height, rows) * ceil_div(problem.out_width, columns)

    @staticmethod
    def _shared_bytes(problem: MaskedConv2dProblem, config: StripConvConfig) -> int:
        """The bytes of pixels, weights, bias and of what units are active."""
        p, c, size = problem, config, problem.filter_size
        pitch = (c.units_across * UNIT + size.columns - 1) * p.channels + 1
        pixels = (c.units_down * UNIT + size.rows - 1) * pitch
        floats = pixels + p.filters * (p.taps * p.channels + 1)
        return round_up(4 * (floats + 1) + c.units_down * c.units_across, 16)


FAMILY = StripConv()
