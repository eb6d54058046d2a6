"""Masked convolutions of images in planes (NCHW) on warps' tensor cores (sm_80 and later)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    LARGEST_COORDINATE,
    UNIT_OUTPUTS,
    countable_outputs,
    geometry_constants,
    has_whole_units,
    result_constants,
    window_sides,
)
from sparsegen.kernels.convolution.unit_lists import list_bytes, window_pixels
from sparsegen.kernels.convolution.unit_tiles import UnitTiles, UnitTilesConfig, fits, stored_along_rows
from sparsegen.kernels.layouts.limits import enough_registers, resident_blocks_fit, shared_memory_fits
from sparsegen.kernels.layouts.loads import ARRIVED_US, LEAST_ASYNC, LOAD_BYTES, widest_vector
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, sums_of, threads_of
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

HELD_WORDS = 32  # registers of a thread for elements on their way to shared memory
# Of an odd number of channels of 16 bits: pieces of weights that a thread has on their way; its loads for an element.
SHIFTED, SHIFTED_LOADS = 4, 5 / 8
USUAL_WEIGHTS = 96 << 10  # bytes of shared memory that weights take at most, if narrower chunks can take less
# Microseconds beside the products, the share of the tensor cores' rate that is reached and the cost of fragments are
# those of `window_conv`, whose products these are. Cycles of a warp's load are counted: four for the rows of a
# window that its 32 lanes meet, a lookup in L1 each, and two for finding its address. Of 38 times of six convolutions
# of 16 bits on an H200 (two in variants_planes.json.xz) this is .96 in the mean, .73 to 1.34 of eight in ten. Halves of
# sectors that neighbours store took no time: they meet in the L2. In float32 products reach half of the rate of TF32: 2
# images of 32 × 320 × 320 took 65 µs (98 expected), by `mma_conv` 85.
START_US, REACHED, REACHED_FLOAT32, BESIDE_FRAGMENTS, FRAGMENTS = 6.5, 0.41, 0.5, 0.56, 14.0
LOAD_CYCLES = 6.0


@dataclass(frozen=True)
class PlaneConvConfig(UnitTilesConfig):
    """One point of the tuning space of `PlaneConv`."""

    tile_m: int = tunable(128, (64, 128, 256), "outputs per thread block, in units of 8 x 8")
    tile_n: int = tunable(64, (16, 32, 64, 128), "filters per thread block")
    chunk: int = tunable(32, (16, 32, 64), "channels of a window in shared memory, and of all taps' weights")
    warps_m: int = tunable(4, (1, 2, 4, 8), "warps side by side along the outputs")
    warps_n: int = tunable(2, (1, 2, 4), "warps side by side along the filters")
    resident: int = tunable(2, (1, 2, 3, 4), "thread blocks per multiprocessor")


class PlaneConv(UnitTiles[PlaneConvConfig]):
    """A persistent kernel: thread blocks find the live units of 8 × 8 outputs in the mask, and share them evenly.

    For some channels at a time, the pixels that a tile's outputs read come to shared memory once, with channels
    innermost there: a thread reads neighbours in a plane, up to 16 bytes of them, of as many channels as 16 bytes hold,
    and writes each pixel's as one vector. The weights of all taps come with them, so that a block waits once for some
    channels and not for each tap. Other blocks of the multiprocessor multiply meanwhile. float32 is split into two TF32
    numbers, and three of the four products are added.
    """

    name = "plane_conv"
    summary = "masked convolution of images in planes (NCHW): windows of pixels with the weights of all taps"
    shapes = (
        PlaneConvConfig(tile_m=128, tile_n=128, chunk=16, warps_m=2, warps_n=4, resident=2),
        PlaneConvConfig(tile_m=128, tile_n=128, chunk=32, warps_m=2, warps_n=4, resident=1),
        PlaneConvConfig(tile_m=64, tile_n=128, chunk=32, warps_m=2, warps_n=4, resident=1),
        PlaneConvConfig(tile_m=128, tile_n=64),
        PlaneConvConfig(tile_m=64, tile_n=64, warps_m=2, warps_n=2, resident=3),
        PlaneConvConfig(tile_m=64, tile_n=64, chunk=64, warps_m=4, warps_n=2, resident=1),
        PlaneConvConfig(tile_m=128, tile_n=32, warps_m=8, warps_n=1),
        PlaneConvConfig(tile_m=64, tile_n=32, chunk=64, warps_m=4, warps_n=2),
        PlaneConvConfig(tile_m=256, tile_n=16, warps_m=8, warps_n=1),
        PlaneConvConfig(tile_m=128, tile_n=16, warps_m=4, warps_n=1, resident=4),
        PlaneConvConfig(tile_m=128, tile_n=16, chunk=64, warps_m=8, warps_n=1),
        PlaneConvConfig(tile_m=64, tile_n=16, chunk=64, warps_m=4, warps_n=1, resident=3),
    )
    smallest = PlaneConvConfig(tile_m=64, tile_n=16, chunk=16, warps_m=4, warps_n=1, resident=1)

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        p = problem
        yield Constraint(p.layout.has_planes, f"channels lie in planes (layout {p.layout})")
        yield countable_outputs(p)
        yield Constraint(
            LOAD_BYTES // p.dtype.itemsize * p.height * p.width < LARGEST_COORDINATE,
            "pixels of a few planes are counted with 31 bits",
        )

    def constraints(
        self, problem: MaskedConv2dProblem, config: PlaneConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        p, c, threads, taken = problem, config, threads_of(config), self.shared_bytes(problem, config)
        yield from on_tensor_cores(c, device, "outputs", "filters")
        yield Constraint(threads >= 2 * WARP, f"threads ({threads}) are two warps at least")
        splits = 2 if p.dtype is DType.FLOAT32 else 1
        operands = splits * (c.tile_m // c.warps_m // 16 * 4 + 8)
        beside = max(operands, HELD_WORDS) + 48
        yield enough_registers(sums_of(c) + beside, max(threads, 128) * c.resident, at_a_time=8)
        yield shared_memory_fits("windows and weights", taken, device)
        yield resident_blocks_fit(c.resident, taken, device)

    def is_worth_trying(self, problem: MaskedConv2dProblem, config: PlaneConvConfig, device: Device) -> bool:
        """True unless a tile or chunk is twice as large as its group's filters or channels, or a thread has fewer than
        8 sums. It rests on arithmetic: such tiles are mostly padding or loads.
        """
        p, c = problem, config
        return self.fits_filters(p, c) and fits(c.chunk, p.group_channels) and sums_of(c) >= 8

    def constants(self, problem: MaskedConv2dProblem, config: PlaneConvConfig) -> Mapping[str, Value]:
        p = problem
        return {
            **geometry_constants(p),
            "whole_units": has_whole_units(p),
            **result_constants(p),
            "whole_vectors": p.group_channels * p.dtype.itemsize % LOAD_BYTES == 0,
            "vector_x": widest_vector(p.width, p.dtype),
            "vector_w": widest_vector(p.group_channels, p.dtype),
            "vector_y": stored_along_rows(p),
        }

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: PlaneConvConfig, device: Device
    ) -> float:
        p, c, rates, threads = problem, config, device.expected_rates, threads_of(config)
        chunks, together = ceil_div(p.group_channels, c.chunk), self.together(p, c, device)
        reached = REACHED_FLOAT32 if p.dtype is DType.FLOAT32 else REACHED
        fragments = BESIDE_FRAGMENTS + FRAGMENTS * (c.warps_m / c.tile_m + c.warps_n / c.tile_n)
        products = fragments * c.tile_m * c.tile_n * c.chunk * p.taps
        own_rate = reached * rates.tensor_products_per_us(p.dtype) / device.multiprocessors
        # Loads of a thread, and how often it waits for some of them.
        size, weights = p.dtype.itemsize, widest_vector(p.group_channels, p.dtype)
        pixels = c.tile_m // UNIT_OUTPUTS * _window_vectors(p) * c.chunk / threads
        of_taps = c.tile_n * p.taps * c.chunk / threads
        waits = math.ceil(pixels * max(1.0, widest_vector(p.width, p.dtype) * size / 4) / HELD_WORDS)
        if weights * size < LEAST_ASYNC:
            waits += math.ceil(of_taps * size / LOAD_BYTES / SHIFTED)
            filters = of_taps * SHIFTED_LOADS
        else:
            filters = of_taps / weights
        issuing = (pixels + filters) * threads / WARP * LOAD_CYCLES / rates.clock_mhz
        of_chunk = ARRIVED_US * waits + together * (issuing + products / own_rate)
        waiting = self.rounds_of_block(p, c, device) * chunks * of_chunk
        inner = round_up(p.group_channels, c.chunk)
        read = c.tile_m // UNIT_OUTPUTS * window_pixels(p) + p.taps * c.tile_n
        loading = self.rounds(p, c, device) * inner * read * size / device.l2_bytes_per_us
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        beside = self.filling_us(p, c, device, stored_along_rows(p)) + self.listing_us(p, c)
        return rates.launch_us + START_US + beside + max(loading, moving, waiting)

    def fitted(self, problem: MaskedConv2dProblem, config: PlaneConvConfig) -> PlaneConvConfig:
        """The shape with the widest chunk, up to its own, of those that leave least padding behind the channels; 16 of
        float32, whose products need more registers, and where the weights of many taps would fill the shared memory.
        """
        p, c, size = problem, config, problem.dtype.itemsize
        most = 16 if p.dtype is DType.FLOAT32 else c.chunk
        chunks = [n for n in (64, 32, 16) if n <= most]
        fitting = [n for n in chunks if p.taps * c.tile_n * (n * size + LOAD_BYTES) <= USUAL_WEIGHTS]
        return replace(c, chunk=min(fitting or [16], key=lambda n: ceil_div(p.group_channels, n) * (n + 16)))

    def shared_bytes(self, problem: MaskedConv2dProblem, config: PlaneConvConfig) -> int:
        """The bytes of a round's windows, of all taps' weights, of sums on their way out and of the list of units."""
        p, c = problem, config
        pixels = c.tile_m // UNIT_OUTPUTS * window_pixels(p) + p.taps * c.tile_n
        out = 4 * 20 * min(32, c.tile_n // c.warps_n) * c.warps_m * c.warps_n
        operands = pixels * (c.chunk * p.dtype.itemsize + LOAD_BYTES)
        return operands + out + list_bytes(p, threads_of(c))


def _window_vectors(problem: MaskedConv2dProblem) -> int:
    """The loads of a unit's window in one plane: rows of pixels, by vectors as they lie in memory."""
    p, (rows, columns) = problem, window_sides(problem)
    vector = widest_vector(p.width, p.dtype)
    return rows * ceil_div(-p.padding.columns % vector + columns, vector)


FAMILY = PlaneConv()
