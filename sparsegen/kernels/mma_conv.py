"""Masked convolutions of any shape on warps' tensor cores (sm_80 and later): an implicit GEMM over the live units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import (
    TENSOR_CORES,
    capable,
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
    whole_tiles,
)
from sparsegen.kernels.layouts.loads import LOAD_BYTES, widest_vector
from sparsegen.kernels.layouts.masked_convolution import (
    UNIT_OUTPUTS,
    MaskedConvolution,
    countable_outputs,
    filter_tiles,
    geometry_constants,
    has_whole_units,
    live_share,
    result_constants,
    units_of,
)
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dProblem

WARP = 32
LISTED_UNITS, SHEET_WORDS = 128, 1024  # that a thread block lists and counts at a time
MOST_COPIES = 32  # of a thread, in a step
# Fitted to an H200: microseconds beside the products; the share of the tensor cores' rate that float32 reaches; and
# what reading tiles from L2 takes over what the bytes would, which bounds 16-bit elements.
START_US, REACHED, LOADED = 18.0, 0.33, 1.6
NARROW = 1.5  # the same for copies of fewer than 8 bytes


@dataclass(frozen=True)
class MmaConvConfig(Config):
    """One point of the tuning space of `MmaConv`."""

    tile_m: int = tunable(128, (64, 128, 256), "outputs per thread block, in units of 8 x 8")
    tile_n: int = tunable(64, (16, 32, 64, 128), "filters per thread block")
    step: int = tunable(64, (16, 32, 64), "elements of the contraction per pipeline stage")
    warps_m: int = tunable(4, (1, 2, 4), "warps side by side along the outputs")
    warps_n: int = tunable(2, (1, 2, 4), "warps side by side along the filters")
    stages: int = tunable(3, (2, 3, 4), "pipeline stages in shared memory")
    resident: int = tunable(2, (1, 2, 3), "thread blocks per multiprocessor")


# From large tiles to small ones; the last one has enough registers for float32.
HEURISTIC_CONFIGS = (
    MmaConvConfig(tile_m=128, tile_n=128, warps_m=2, warps_n=4, resident=1),
    MmaConvConfig(tile_m=128, tile_n=64, warps_m=4, warps_n=2),
    MmaConvConfig(tile_m=64, tile_n=64, warps_m=2, warps_n=2, resident=3),
    MmaConvConfig(tile_m=64, tile_n=32, warps_m=2, warps_n=2, resident=3),
    MmaConvConfig(tile_m=64, tile_n=16, warps_m=4, warps_n=1, resident=3),
)


class MmaConv(MaskedConvolution[MmaConvConfig]):
    """A persistent kernel: thread blocks find the live units of 8 × 8 outputs in the mask, and share them evenly.

    A tile of some units and filters is a matrix product over taps and channels. Its steps come to shared memory by
    ``cp.async``, which writes zeros where a tap lies outside of the image. The contraction runs over taps and channels
    as the filters lie in memory, so that few channels fill a step too. Copies move 16 bytes where the channels of a
    group are a multiple of 8 (of float32, 4), and fewer otherwise, down to single elements for an odd number; so they
    do where the channels are outermost (NCHW). float32 is split into two TF32 numbers, and three of the four products
    are added: results are as exact as in float32.
    """

    name = "mma_conv"
    summary = "masked convolution of any shape on warps' tensor cores, over the live units of 8 x 8 outputs"
    source = (
        "Ren et al., SBNet, CVPR 2018 (active blocks alone are computed); Shah and Nair, Block Sparse Convolution; "
        "implicit GEMM: Chetlur et al., cuDNN, 2014; mma.sync with cp.async stages: NVIDIA, PTX ISA; float32 from "
        "three TF32 products: Ootomo and Yokota, IJHPCA 2022"
    )
    template = "masked_conv2d/mma_conv.cu.j2"
    entry = "mma_conv"
    size_names = (
        *("images", "height", "width", "channels", "filters"),
        *("out_height", "out_width", "mask_rows", "mask_columns"),
    )
    config_type = MmaConvConfig

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        yield countable_outputs(problem)

    def constraints(
        self, problem: MaskedConv2dProblem, config: MmaConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, threads, taken = config, self._threads(config), self._shared_bytes(problem, config)
        yield capable(device, TENSOR_CORES)
        yield whole_tiles("warps_m", c.warps_m, "tile_m", c.tile_m, 16, "outputs")
        yield whole_tiles("warps_n", c.warps_n, "tile_n", c.tile_n, 16, "filters")
        yield Constraint(
            threads >= c.step and threads >= 2 * WARP,
            f"threads ({threads}) are two warps at least, and bring whole steps ({c.step})",
        )
        vector = self._vector(problem)
        yield Constraint(
            c.tile_m * c.step <= MOST_COPIES * vector * threads,
            f"a thread ({threads} in all) brings at most {MOST_COPIES} times {vector} elements of the pixels of a step",
        )
        splits = 3 if problem.dtype is DType.FLOAT32 else 1
        operands = splits * (c.tile_m // c.warps_m // 16 * 4 + 8)
        yield enough_registers(self._sums(c) + operands + 56, max(threads, 128) * c.resident, at_a_time=8)
        yield shared_memory_fits("stages", taken, device)
        yield resident_blocks_fit(c.resident, taken, device)

    def is_worth_trying(self, problem: MaskedConv2dProblem, config: MmaConvConfig, device: Device) -> bool:
        c, of_group = config, problem.filters // problem.groups.count
        inner = problem.taps * problem.group_channels
        return c.tile_n < 2 * max(16, of_group) and c.step < 2 * max(16, inner) and self._sums(c) >= 16

    def constants(self, problem: MaskedConv2dProblem, config: MmaConvConfig) -> Mapping[str, Value]:
        p, planes = problem, problem.layout.has_planes
        # Outputs that follow one another are stored together where the mask asks for all of them, or for none.
        together = p.mask_of.is_of_input or has_whole_units(p)
        return {
            **geometry_constants(p),
            "whole_units": has_whole_units(p),
            **result_constants(p),
            "layout": p.layout.value,
            "whole_steps": p.group_channels % config.step == 0,
            "a_by_inner": not planes,
            "b_by_inner": True,
            "vector_x": self._vector(p),
            "vector_w": widest_vector(p.taps * p.group_channels, p.dtype),
            "vector_y": (widest_vector(p.out_width, p.dtype) if together else 1)
            if planes
            else widest_vector(p.filters // p.groups.count, p.dtype),
        }

    def launch(
        self,
        problem: MaskedConv2dProblem,
        config: MmaConvConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        """The launch has as many thread blocks as the device holds, the same number for each tile of filters."""
        tiles = filter_tiles(problem, config.tile_n)
        parts = max(1, device.multiprocessors * config.resident // tiles)
        return Launch(
            grid=(parts * tiles, 1, 1),
            block=(self._threads(config), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: MmaConvConfig, device: Device
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        units = live_share(p) * units_of(p)
        tiles, inner = filter_tiles(p, c.tile_n), -(-p.group_channels * p.taps // c.step) * c.step
        parts = max(1, device.multiprocessors * c.resident // tiles)
        items = -(-units * UNIT_OUTPUTS // (c.tile_m * parts)) * parts * tiles
        computing = items * c.tile_m * c.tile_n * inner / (REACHED * rates.tensor_products_per_us(p.dtype))
        loading = LOADED * items * (c.tile_m + c.tile_n) * inner * p.dtype.itemsize / device.l2_bytes_per_us
        if self._vector(p) * p.dtype.itemsize < 8:
            loading *= NARROW
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        return rates.launch_us + START_US + max(computing, loading, moving)

    def heuristic(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> MmaConvConfig:
        """The largest tiles of which every multiprocessor gets one; none is twice as wide as a group's filters."""
        p, of_group = problem, problem.filters // problem.groups.count
        step = self._step(p)
        wide = [c for c in HEURISTIC_CONFIGS if c.tile_n < 2 * max(9, of_group)]
        outputs = p.density.share * p.batch * p.out_height * p.out_width
        for config in wide:
            found = replace(config, step=step)
            if self.broken_constraints(p, found, device):
                continue
            if outputs * filter_tiles(p, found.tile_n) >= device.multiprocessors * found.tile_m:
                return found
        return replace(wide[-1], step=step)

    def alternatives(
        self, problem: MaskedConv2dProblem, features: Features, device: Device
    ) -> tuple[MmaConvConfig, ...]:
        """The other tiles: live units may come together or apart."""
        some = (replace(c, step=self._step(problem)) for c in HEURISTIC_CONFIGS)
        return tuple(
            c
            for c in some
            if self.is_worth_trying(problem, c, device) and not self.broken_constraints(problem, c, device)
        )

    @staticmethod
    def _step(problem: MaskedConv2dProblem) -> int:
        """The usual elements of a step: few for few channels, or for float32, whose products need more registers."""
        if problem.dtype is DType.FLOAT32:
            return 16
        inner = problem.taps * problem.group_channels
        return next(step for step in (16, 32, 64) if inner <= 2 * step or step == 64)

    @staticmethod
    def _vector(problem: MaskedConv2dProblem) -> int:
        """The elements of a pixel that a copy brings."""
        if problem.layout.has_planes:
            return 1
        return widest_vector(problem.group_channels, problem.dtype)

    @staticmethod
    def _threads(config: MmaConvConfig) -> int:
        return WARP * config.warps_m * config.warps_n

    @staticmethod
    def _sums(config: MmaConvConfig) -> int:
        """The sums that each thread keeps in registers."""
        return config.tile_m * config.tile_n // (WARP * config.warps_m * config.warps_n)

    def _shared_bytes(self, problem: MaskedConv2dProblem, config: MmaConvConfig) -> int:
        """The bytes of all stages, or of the sums that take their place, and of the list of units."""
        p, c, size = problem, config, problem.dtype.itemsize
        padded = c.step * size + LOAD_BYTES
        if p.layout.has_planes:
            pixels, sums = c.step * (c.tile_m * size + LOAD_BYTES), c.tile_n * (c.tile_m + 4) * 4
        else:
            pixels, sums = c.tile_m * padded, c.tile_m * (c.tile_n + 8) * 4
        ring = max(c.stages * (pixels + c.tile_n * padded), sums)
        units = LISTED_UNITS * (20 if p.mask_of.is_of_input else 12)
        listed = 16 * c.tile_m + units + 8 * SHEET_WORDS + 4 * c.warps_m * c.warps_n
        return ring + -(-listed // LOAD_BYTES) * LOAD_BYTES


FAMILY = MmaConv()
