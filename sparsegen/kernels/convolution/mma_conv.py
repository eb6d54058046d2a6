"""Masked convolutions of any shape on warps' tensor cores (sm_80 and later): an implicit GEMM over the live units."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    LARGEST_COORDINATE,
    countable_outputs,
    geometry_constants,
    has_whole_units,
    result_constants,
)
from sparsegen.kernels.convolution.unit_lists import list_bytes
from sparsegen.kernels.convolution.unit_tiles import UnitTiles, UnitTilesConfig, fits, stored_along_rows
from sparsegen.kernels.layouts.limits import enough_registers, resident_blocks_fit, shared_memory_fits
from sparsegen.kernels.layouts.loads import BEGUN_US, LEAST_ASYNC, LOAD_BYTES, step_us, widest_vector
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, sums_of, threads_of
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dProblem, MaskOf
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import round_up

MOST_COPIES = 32  # copies of a thread in a step
FIRST_PIXEL_BYTES = 16  # bytes for each output in shared memory: the position where its first tap reads
# Fitted to an H200: microseconds beside the products; the share of the tensor cores' rate that float32 reaches; and
# what reading tiles from L2 takes over what the bytes would, which bounds 16-bit elements.
START_US, REACHED, LOADED = 10.0, 0.28, 1.7
NARROW = 1.5  # the same for copies of fewer than 8 bytes
# Of pixels in planes, fitted to drawn problems on an H200: microseconds until a load has come; those in which a thread
# goes to the next place of the contraction; those of a fragment of pixels, and of a warp's product of two fragments.
ARRIVED_US, PLACE_US, FRAGMENT_US, PRODUCT_US = 0.45, 0.06, 0.08, 0.006
OUT_US = 0.1  # microseconds of each sum of a thread on its way out, which no load overlaps


@dataclass(frozen=True)
class MmaConvConfig(UnitTilesConfig):
    """One point of the tuning space of `MmaConv`."""

    tile_m: int = tunable(128, (64, 128, 256), "outputs per thread block, in units of 8 x 8")
    tile_n: int = tunable(64, (16, 32, 64, 128), "filters per thread block")
    step: int = tunable(64, (16, 32, 64), "elements of the contraction per pipeline stage")
    warps_m: int = tunable(4, (1, 2, 4), "warps side by side along the outputs")
    warps_n: int = tunable(2, (1, 2, 4), "warps side by side along the filters")
    stages: int = tunable(3, (2, 3, 4), "pipeline stages in shared memory")
    resident: int = tunable(2, (1, 2, 3), "thread blocks per multiprocessor")


class MmaConv(UnitTiles[MmaConvConfig]):
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
    smallest = MmaConvConfig(tile_m=64, tile_n=16, warps_m=4, warps_n=1, resident=3)
    shapes = (
        MmaConvConfig(tile_m=128, tile_n=128, warps_m=2, warps_n=4, resident=1),
        MmaConvConfig(tile_m=128, tile_n=64, warps_m=4, warps_n=2),
        MmaConvConfig(tile_m=64, tile_n=64, warps_m=2, warps_n=2, resident=3),
        MmaConvConfig(tile_m=256, tile_n=32, warps_m=4, warps_n=2, stages=2),
        MmaConvConfig(tile_m=128, tile_n=32, warps_m=4, warps_n=1, resident=3),
        MmaConvConfig(tile_m=64, tile_n=32, warps_m=2, warps_n=2, resident=3),
        MmaConvConfig(tile_m=128, tile_n=16, warps_m=4, warps_n=1, resident=3),
        smallest,
    )

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        yield countable_outputs(problem)

    def constraints(
        self, problem: MaskedConv2dProblem, config: MmaConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c, threads, taken = config, threads_of(config), self.shared_bytes(problem, config)
        yield from on_tensor_cores(c, device, "outputs", "filters")
        yield Constraint(
            threads >= c.step and threads >= 2 * WARP,
            f"threads ({threads}) are two warps at least, and load whole steps ({c.step})",
        )
        vector = self._vector(problem)
        yield Constraint(
            c.tile_m * c.step <= MOST_COPIES * vector * threads,
            f"a thread ({threads} in all) loads at most {MOST_COPIES} times {vector} elements of the pixels of a step",
        )
        splits = 3 if problem.dtype is DType.FLOAT32 else 1
        operands = splits * (c.tile_m // c.warps_m // 16 * 4 + 8)
        yield enough_registers(sums_of(c) + operands + 56, max(threads, 128) * c.resident, at_a_time=8)
        yield shared_memory_fits("stages", taken, device)
        yield resident_blocks_fit(c.resident, taken, device)

    def is_worth_trying(self, problem: MaskedConv2dProblem, config: MmaConvConfig, device: Device) -> bool:
        """True unless a tile or step is twice as large as its group's filters or channels, or a thread has fewer than
        16 sums. It rests on arithmetic: such tiles are mostly padding or loads.
        """
        p, c = problem, config
        return self.fits_filters(p, c) and fits(c.step, p.taps * p.group_channels) and sums_of(c) >= 16

    def constants(self, problem: MaskedConv2dProblem, config: MmaConvConfig) -> Mapping[str, Value]:
        p, planes = problem, problem.layout.has_planes
        return {
            **geometry_constants(p),
            "whole_units": has_whole_units(p),
            **result_constants(p),
            "layout": p.layout.value,
            "short_offsets": p.batch * p.height * p.width * p.channels < LARGEST_COORDINATE,
            "whole_steps": p.group_channels % config.step == 0,
            "a_by_inner": not planes,
            "b_by_inner": True,
            "vector_x": self._vector(p),
            "vector_w": widest_vector(p.taps * p.group_channels, p.dtype),
            "vector_y": self._stored(p),
        }

    def _stored(self, problem: MaskedConv2dProblem) -> int:
        """Outputs that follow one another and are stored together."""
        p = problem
        return (
            stored_along_rows(p)
            if p.layout.has_planes
            else widest_vector(p.filters // p.groups.count, p.dtype)
        )

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: MmaConvConfig, device: Device
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        rounds, inner = self.rounds(p, c, device), round_up(p.group_channels * p.taps, c.step)
        computing = rounds * c.tile_m * c.tile_n * inner / (REACHED * rates.tensor_products_per_us(p.dtype))
        loading = LOADED * rounds * (c.tile_m + c.tile_n) * inner * p.dtype.itemsize / device.l2_bytes_per_us
        if self._vector(p) * p.dtype.itemsize < 8:
            loading *= NARROW
        steps = inner / c.step  # of a round
        vector_w = widest_vector(p.taps * p.group_channels, p.dtype)
        loads: tuple[tuple[int, float], ...] = (
            (self._vector(p), c.tile_m * c.step),
            (vector_w, c.tile_n * c.step),
        )
        if p.layout.has_planes:
            of_step = self._step_of_planes_us(p, c, loads)
        else:
            if p.mask_of is MaskOf.ANY_INPUT:  # looks at the mask, one a tap, take as long as loads to begin
                loads += ((self._vector(p), c.tile_m * c.step * min(1.0, c.step / p.group_channels)),)
            of_step = step_us(p.dtype, loads, threads_of(c), c.stages, self.together(p, c, device))
        of_round = steps * of_step + OUT_US * sums_of(c)
        waiting = self.rounds_of_block(p, c, device) * of_round
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        filling = self.filling_us(p, c, device, self._stored(p))
        beside = filling + self.storing_us(p, c, device) + self.listing_us(p, c)
        return rates.launch_us + START_US + beside + max(computing, loading, moving, waiting)

    @staticmethod
    def _step_of_planes_us(
        problem: MaskedConv2dProblem, config: MmaConvConfig, loads: Iterable[tuple[int, float]]
    ) -> float:
        """Estimates microseconds of a step whose pixels lie in planes.

        A thread goes through the places of the contraction one by one, and finds where each one's plane is.
        Instructions wait for each other rather than warps for issue slots, of one block as of several.

        Args:
            loads: see `layouts.loads.step_us`.
        """
        c, size, threads = config, problem.dtype.itemsize, threads_of(config)
        waited = ARRIVED_US / (c.stages - 1 if size >= LEAST_ASYNC else 1)
        begun = sum(elements / vector / threads for vector, elements in loads)
        places = c.step / max(1.0, threads / c.tile_m)
        rows, columns = c.tile_m / c.warps_m / 16, c.tile_n / c.warps_n / 8
        fragments = rows * c.step * size / 32
        products = fragments * columns * (3 if problem.dtype is DType.FLOAT32 else 1)
        return waited + BEGUN_US * begun + PLACE_US * places + FRAGMENT_US * fragments + PRODUCT_US * products

    def fitted(self, problem: MaskedConv2dProblem, config: MmaConvConfig) -> MmaConvConfig:
        """The shape with the usual elements of a step: few for few channels, for short copies, or for float32, which
        needs registers.
        """
        if problem.dtype is DType.FLOAT32:
            return replace(config, step=16)
        inner = problem.taps * problem.group_channels
        copied = MOST_COPIES * self._vector(problem) * threads_of(config) // config.tile_m
        step = next(step for step in (16, 32, 64) if inner <= 2 * step or 2 * step > min(64, copied))
        return replace(config, step=step)

    @staticmethod
    def _vector(problem: MaskedConv2dProblem) -> int:
        """The elements of a pixel that a copy loads."""
        if problem.layout.has_planes:
            return 1
        return widest_vector(problem.group_channels, problem.dtype)

    def shared_bytes(self, problem: MaskedConv2dProblem, config: MmaConvConfig) -> int:
        """The bytes of all stages, or of the sums that take their place, of first pixels and of the list of units."""
        p, c, size = problem, config, problem.dtype.itemsize
        padded = c.step * size + LOAD_BYTES
        if p.layout.has_planes:
            pixels, sums = c.step * (c.tile_m * size + LOAD_BYTES), c.tile_n * (c.tile_m + 4) * 4
        else:
            pixels, sums = c.tile_m * padded, c.tile_m * (c.tile_n + 8) * 4
        ring = max(c.stages * (pixels + c.tile_n * padded), sums)
        return ring + list_bytes(p, threads_of(c), beside=FIRST_PIXEL_BYTES * c.tile_m)


FAMILY = MmaConv()
