"""Gradients of masked convolutions by their weights, on warps' tensor cores (sm_80 and later), over the live units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    UNIT_OUTPUTS,
    MaskedConvolutionWeights,
    countable_outputs,
    geometry_constants,
    has_whole_units,
    live_share,
    mask_constants,
    units_of,
)
from sparsegen.kernels.convolution.unit_lists import list_bytes, window_pixels
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import (
    enough_registers,
    resident_blocks,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.loads import LOAD_BYTES, step_us, widest_vector
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dWeightsProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

# Fitted to a gradient on an H100 with 24 configs: microseconds beside the products, and the share of the tensor cores'
# rate that tiles of LARGE elements reach, and smaller ones.
START_US, REACHED, REACHED_BY_SMALL, LARGE = 6.0, 0.5, 0.25, 128 * 32
REACHED_BY_ONE_TAP = (
    0.5  # of that, as no fragment of the gradient is multiplied twice: 7 x 7 at stride 2 on an H200
)
# Fitted to drawn problems on an H200: microseconds of a warp for the products of a unit and 16 x 16 sums, by bytes of
# an element; and of the last block for a part of the sums, and for each sum of a thread in it.
FRAGMENT_US = {2: 0.045, 4: 0.45}
PART_US, SUM_US = 0.2, 0.007
EXTRA_REGISTERS = 64  # that a thread needs beside its sums, about


@dataclass(frozen=True)
class WindowConvWeightsConfig(Config):
    """One point of the tuning space of `WindowConvWeights`."""

    tile_m: int = tunable(64, (16, 32, 64, 128), "filters per thread block", packs=True)
    tile_n: int = tunable(32, (16, 32, 64), "channels per thread block", packs=True)
    taps: int = tunable(9, (1, 3, 5, 7, 9), "filter taps per thread block", packs=True)
    warps_m: int = tunable(2, (1, 2, 4), "warps side by side along the filters")
    warps_n: int = tunable(2, (1, 2, 4), "warps side by side along the channels")
    warps_k: int = tunable(2, (1, 2), "warps that share the outputs of a unit")
    stages: int = tunable(3, (2, 3, 4), "pipeline stages in shared memory, a unit of 8 x 8 outputs each")
    parts: int = tunable(
        16, (1, 4, 8, 16, 32, 64), "blocks that share the units; their sums are added up in order", packs=True
    )
    resident: int = tunable(1, (1, 2), "thread blocks per multiprocessor")


# Tiles from large to small; parts and taps are found for each problem.
SHAPES = (
    WindowConvWeightsConfig(tile_m=128, tile_n=32, warps_m=4, warps_n=2, warps_k=1),
    WindowConvWeightsConfig(tile_m=64, tile_n=64, warps_m=2, warps_n=4, warps_k=1),
    WindowConvWeightsConfig(tile_m=64, tile_n=32, warps_m=2, warps_n=2, warps_k=2),
    WindowConvWeightsConfig(tile_m=32, tile_n=32, warps_m=2, warps_n=2, warps_k=2),
    WindowConvWeightsConfig(tile_m=32, tile_n=32, warps_m=1, warps_n=2, warps_k=2),
    WindowConvWeightsConfig(tile_m=16, tile_n=64, warps_m=1, warps_n=4, warps_k=2),
    WindowConvWeightsConfig(tile_m=64, tile_n=16, warps_m=4, warps_n=1, warps_k=2),
    WindowConvWeightsConfig(tile_m=32, tile_n=16, warps_m=2, warps_n=1, warps_k=2),
    WindowConvWeightsConfig(tile_m=16, tile_n=32, warps_m=1, warps_n=2, warps_k=2),
    WindowConvWeightsConfig(tile_m=16, tile_n=16, warps_m=1, warps_n=1, warps_k=2),
)
SMALLEST = WindowConvWeightsConfig(
    tile_m=16, tile_n=16, taps=1, warps_m=1, warps_n=1, warps_k=2, stages=2, parts=1
)


class WindowConvWeights(MaskedConvolutionWeights[WindowConvWeightsConfig]):
    """Products over the pixels of live units: all taps of a block's tile read one window of x, which comes once.

    A unit of 8 × 8 outputs is a pipeline stage: its pixels of dy, each with the filters of a tile, and its pixels of x
    with their halo. What lies outside of the mask counts as zero. The parts of a tile are added up by the last of its
    blocks, in a fixed order, so that equal inputs give equal bits.
    """

    name = "window_conv_weights"
    summary = "gradient of a masked convolution by its weights: for each tap a product over the pixels of live units"
    source = (
        "Ren et al., SBNet, CVPR 2018 (active blocks alone are computed); implicit GEMM: Chetlur et al., cuDNN, 2014; "
        "mma.sync with cp.async stages: NVIDIA, PTX ISA; float32 from three TF32 products: Ootomo and Yokota, IJHPCA "
        "2022"
    )
    scratch_names = ("arrived", "partial_sums")

    def scope(self, problem: MaskedConv2dWeightsProblem) -> Iterator[Constraint]:
        yield one_batch_element(problem)
        yield countable_outputs(problem.forward)

    def constraints(
        self, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        p, c, taken = problem, config, self._shared_bytes(problem, config)
        yield from on_tensor_cores(c, device, "filters", "channels")
        yield Constraint(p.taps % c.taps == 0, f"blocks share the taps ({p.taps}) evenly, {c.taps} each")
        threads = self._threads(c)
        yield Constraint(threads >= 2 * WARP, f"two warps at least ({threads} threads)")
        rows = c.tile_m // c.warps_m // 16
        operands = (2 if p.dtype is DType.FLOAT32 else 1) * (4 * rows + 4)
        yield enough_registers(self._sums(c) + operands + 48, max(threads, 128) * c.resident, at_a_time=8)
        yield self.scratch_fits(p, c)
        yield shared_memory_fits("stages", taken, device)
        yield resident_blocks_fit(c.resident, taken, device)

    def is_worth_trying(
        self, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig, device: Device
    ) -> bool:
        """True for tiles at most twice as large as a group's filters and channels, with at least 16 sums a thread, and
        for at most 4 blocks a multiprocessor if there are parts. It rests on arithmetic: more parts only add sums.
        """
        p, c = problem, config
        blocks = self._tiles(p, c) * c.parts
        return (
            not self._is_large(p, c)
            and self._sums(c) >= 16
            and (c.parts == 1 or blocks <= 4 * device.multiprocessors)
        )

    def constants(
        self, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig
    ) -> Mapping[str, Value]:
        p = problem
        filters, channels = self._of_group(p)
        return {
            **geometry_constants(p.forward),
            "whole_units": has_whole_units(p.forward),
            **mask_constants(p.forward),
            "a_by_inner": False,
            "b_by_inner": False,
            "vector_x": widest_vector(channels, p.dtype),
            "vector_y": widest_vector(filters, p.dtype),
        }

    def launch(
        self,
        problem: MaskedConv2dWeightsProblem,
        config: WindowConvWeightsConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(self._tiles(problem, config), config.parts, 1),
            block=(self._threads(config), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def heuristic(
        self, problem: MaskedConv2dWeightsProblem, features: Features, device: Device
    ) -> WindowConvWeightsConfig:
        """Returns the config with the least expected time among tiles no larger than a group."""
        return self.fastest(problem, features, self._some(problem, device), device)

    def alternatives(
        self, problem: MaskedConv2dWeightsProblem, features: Features, device: Device
    ) -> tuple[WindowConvWeightsConfig, ...]:
        """The next ones by expected time."""
        return tuple(self.by_time(problem, features, self._some(problem, device), device)[1:6])

    def _some(self, problem: MaskedConv2dWeightsProblem, device: Device) -> Iterator[WindowConvWeightsConfig]:
        """Valid configs: tiles of several sizes, as many taps as registers hold or one, and parts with a unit each."""
        p = problem
        units = live_share(p.forward) * units_of(p.forward)
        for start in SHAPES:
            if self._is_large(p, start):
                continue
            by_taps = (replace(start, taps=taps) for taps in (9, 7, 5, 3, 1) if p.taps % taps == 0)
            valid = [found for found in by_taps if self.is_valid(p, found, device)]
            for found in dict.fromkeys((*valid[:1], *valid[-1:])):
                for parts in (1, 4, 8, 16, 32, 64):
                    shared = replace(found, parts=parts)
                    if parts <= max(1.0, units) and self.is_valid(p, shared, device):
                        yield shared
        yield SMALLEST

    def analytic_us(
        self,
        problem: MaskedConv2dWeightsProblem,
        features: Features,
        config: WindowConvWeightsConfig,
        device: Device,
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        units, tiles = live_share(p.forward) * units_of(p.forward), self._tiles(p, c)
        products = units * UNIT_OUTPUTS * tiles * c.tile_m * c.tile_n * c.taps
        reached = REACHED if c.tile_m * c.tile_n >= LARGE else REACHED_BY_SMALL
        reached *= REACHED_BY_ONE_TAP if c.taps == 1 else 1.0
        computing = products / (reached * rates.tensor_products_per_us(p.dtype))
        window = self._pixels(p, c)
        of_unit = UNIT_OUTPUTS * c.tile_m + window * c.tile_n
        loading = units * tiles * of_unit * p.dtype.itemsize / device.l2_bytes_per_us
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        # A block's units, one after the other, and the waves of blocks that a multiprocessor holds.
        filters, channels = self._of_group(p)
        loads = (
            (widest_vector(filters, p.dtype), UNIT_OUTPUTS * c.tile_m),
            (widest_vector(channels, p.dtype), window * c.tile_n),
        )
        fragments = c.tile_m * c.tile_n // 256 * c.taps / (self._threads(c) // WARP)
        registers = self._sums(c) + EXTRA_REGISTERS
        resident = resident_blocks(self._threads(c), registers, self._shared_bytes(p, c), device)
        together = min(resident, ceil_div(tiles * c.parts, device.multiprocessors))
        of_unit_us = step_us(p.dtype, loads, self._threads(c), c.stages, together)
        of_unit_us += fragments * FRAGMENT_US[p.dtype.itemsize]
        waves = ceil_div(tiles * c.parts, device.multiprocessors * resident)
        waiting = max(1, ceil_div(units, c.parts), waves * units / c.parts) * of_unit_us
        sums = 0.0
        if c.parts > 1:  # the last block of a tile reads all parts, one after the other
            sums = 2 * self.scratch(p, c)["partial_sums"] / device.l2_bytes_per_us
            sums += c.parts * (PART_US + self._sums(c) * SUM_US)
        return rates.launch_us + START_US + max(computing, loading, moving, waiting) + sums

    @classmethod
    def _is_large(cls, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig) -> bool:
        """True for tiles more than twice as large as a group's filters or channels."""
        filters, channels = cls._of_group(problem)
        return config.tile_m > 2 * max(16, filters) or config.tile_n > 2 * max(16, channels)

    @staticmethod
    def _of_group(problem: MaskedConv2dWeightsProblem) -> tuple[int, int]:
        """Filters and channels."""
        groups = problem.groups.count
        return problem.filters // groups, problem.channels // groups

    @staticmethod
    def _pixels(problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig) -> int:
        """Pixels of x in a stage: the window of all taps, or for one tap a pixel for each output of a unit."""
        return UNIT_OUTPUTS if config.taps == 1 else window_pixels(problem.forward)

    @staticmethod
    def _threads(config: WindowConvWeightsConfig) -> int:
        return WARP * config.warps_m * config.warps_n * config.warps_k

    @staticmethod
    def _sums(config: WindowConvWeightsConfig) -> int:
        """The sums that each thread keeps in registers."""
        return config.tile_m * config.tile_n * config.taps // (WARP * config.warps_m * config.warps_n)

    def _tiles(self, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig) -> int:
        filters, channels = self._of_group(problem)
        of_group = ceil_div(filters, config.tile_m) * ceil_div(channels, config.tile_n)
        return problem.groups.count * of_group * (problem.taps // config.taps)

    def scratch(self, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig) -> dict[str, int]:
        """Bytes of the counters and of the parts of whole tiles."""
        c = config
        if c.parts == 1:
            return {"arrived": 4, "partial_sums": 4}
        tiles = self._tiles(problem, c)
        return {"arrived": 4 * tiles, "partial_sums": 4 * tiles * c.tile_m * c.tile_n * c.taps * c.parts}

    def _shared_bytes(self, problem: MaskedConv2dWeightsProblem, config: WindowConvWeightsConfig) -> int:
        """The bytes of all stages, or of the sums that take their place, and of the list of units."""
        p, c, size = problem, config, problem.dtype.itemsize
        gradient = UNIT_OUTPUTS * (c.tile_m * size + LOAD_BYTES)
        window = self._pixels(p, c) * (c.tile_n * size + LOAD_BYTES)
        sums = 4 * (c.warps_k - 1) * c.tile_m * c.tile_n * c.taps
        ring = max(c.stages * (gradient + window), sums)
        return ring + list_bytes(p.forward, self._threads(c), beside=4)


FAMILY = WindowConvWeights()
