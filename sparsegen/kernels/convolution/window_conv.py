"""Masked convolutions on warps' tensor cores (sm_80 and later): all taps of a filter read one window of pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    UNIT_OUTPUTS,
    countable_outputs,
    geometry_constants,
    has_whole_units,
    result_constants,
)
from sparsegen.kernels.convolution.unit_lists import list_bytes, window_pixels
from sparsegen.kernels.convolution.unit_tiles import UnitTiles, UnitTilesConfig, fits
from sparsegen.kernels.layouts.limits import enough_registers, resident_blocks_fit, shared_memory_fits
from sparsegen.kernels.layouts.loads import LOAD_BYTES, step_us, widest_vector
from sparsegen.kernels.layouts.warp_tiles import on_tensor_cores, sums_of, threads_of
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dProblem, MaskOf
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import round_up

MOST_TAPS = 64  # taps of a filter: one bit of a word for each
# Fitted to three masks on an H100 with eight configs each, float16, and to drawn problems on an H200: microseconds
# beside the products; the share of the tensor cores' rate that warp tiles of 64 x 64 and chunks of 64 channels reach;
# what narrower ones cost more.
START_US, REACHED, REACHED_FLOAT32 = 6.5, 0.41, 0.25
# Factor of a product's time, and what goes with the fragments that a warp loads for it.
BESIDE_FRAGMENTS, FRAGMENTS = 0.56, 14.0
CHUNK = 0.12  # fraction of the time for each further chunk of 64 channels
WEIGHTS_US = 0.6  # microseconds until weights have come, mostly from L2, as all thread blocks read them
UNEVEN = 1.3  # for a mask of the input, whose units need different taps


@dataclass(frozen=True)
class WindowConvConfig(UnitTilesConfig):
    """One point of the tuning space of `WindowConv`."""

    tile_m: int = tunable(256, (64, 128, 256), "outputs per thread block, in units of 8 x 8")
    tile_n: int = tunable(128, (16, 32, 64, 128), "filters per thread block")
    chunk: int = tunable(64, (16, 32, 64), "channels of a window in shared memory")
    warps_m: int = tunable(4, (1, 2, 4), "warps side by side along the outputs")
    warps_n: int = tunable(2, (1, 2, 4), "warps side by side along the filters")
    stages: int = tunable(3, (2, 3, 4), "pipeline stages of weights, a tap each")
    resident: int = tunable(1, (1, 2, 3), "thread blocks per multiprocessor")


class WindowConv(UnitTiles[WindowConvConfig]):
    """A persistent kernel: thread blocks find the live units of 8 × 8 outputs in the mask, and share them evenly.

    For some channels at a time the pixels that a tile's outputs read, their window, come to shared memory once by
    ``cp.async``, and all taps multiply them where they lie: a row of a fragment may begin at any pixel. Weights come
    tap by tap in a ring of stages; two windows take turns, across rounds too. Zeros stand for pixels outside of the
    image and for those outside of the mask where it says what counts of the input. float32 is split into two TF32
    numbers, and three of the four products are added.
    """

    name = "window_conv"
    summary = "masked convolution on warps' tensor cores: taps are places in windows of pixels with a halo"
    shapes = (
        WindowConvConfig(),
        WindowConvConfig(tile_m=128, tile_n=128, warps_m=2, warps_n=4),
        WindowConvConfig(tile_m=128, tile_n=128, chunk=32, warps_m=2, warps_n=4, resident=2),
        WindowConvConfig(tile_m=128, tile_n=64, chunk=32, warps_m=4, warps_n=2, resident=2),
        WindowConvConfig(tile_m=64, tile_n=64, chunk=32, warps_m=2, warps_n=2, resident=3),
        WindowConvConfig(tile_m=128, tile_n=32, chunk=16, warps_m=4, warps_n=2, stages=4, resident=2),
        WindowConvConfig(tile_m=64, tile_n=32, chunk=16, warps_m=2, warps_n=2, resident=2),
        WindowConvConfig(tile_m=128, tile_n=16, chunk=32, warps_m=4, warps_n=1, stages=4),
        WindowConvConfig(tile_m=64, tile_n=16, chunk=16, warps_m=4, warps_n=1, resident=2),
    )
    smallest = WindowConvConfig(tile_m=64, tile_n=16, chunk=16, warps_m=4, warps_n=1, stages=2, resident=1)

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        p = problem
        yield Constraint(not p.layout.has_planes, f"channels are innermost (layout {p.layout})")
        yield Constraint(p.taps <= MOST_TAPS, f"a filter has at most {MOST_TAPS} taps ({p.taps})")
        yield countable_outputs(p)

    def constraints(
        self, problem: MaskedConv2dProblem, config: WindowConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        p, c, threads, taken = problem, config, threads_of(config), self.shared_bytes(problem, config)
        yield from on_tensor_cores(c, device, "outputs", "filters")
        yield Constraint(
            threads >= max(c.chunk, 2 * WARP),
            f"threads ({threads}) are two warps at least, and load whole chunks ({c.chunk})",
        )
        splits = 2 if p.dtype is DType.FLOAT32 else 1
        operands = splits * (c.tile_m // c.warps_m // 16 * 4 + 8)
        yield enough_registers(sums_of(c) + operands + 48, max(threads, 128) * c.resident, at_a_time=8)
        yield shared_memory_fits("windows and stages", taken, device)
        yield resident_blocks_fit(c.resident, taken, device)

    def is_worth_trying(self, problem: MaskedConv2dProblem, config: WindowConvConfig, device: Device) -> bool:
        """True unless a tile or chunk is twice as large as its group's filters or channels, or a thread has fewer than
        16 sums. It rests on arithmetic: such tiles are mostly padding or loads.
        """
        p, c = problem, config
        return self.fits_filters(p, c) and fits(c.chunk, p.group_channels) and sums_of(c) >= 16

    def constants(self, problem: MaskedConv2dProblem, config: WindowConvConfig) -> Mapping[str, Value]:
        p = problem
        return {
            **geometry_constants(p),
            "whole_units": has_whole_units(p),
            **result_constants(p),
            "vector_x": widest_vector(p.group_channels, p.dtype),
            "vector_y": widest_vector(p.filters // p.groups.count, p.dtype),
        }

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: WindowConvConfig, device: Device
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        rounds, inner = self.rounds(p, c, device), round_up(p.group_channels, c.chunk)
        is_float32 = p.dtype is DType.FLOAT32
        products = rounds * c.tile_m * c.tile_n * inner * p.taps
        products *= BESIDE_FRAGMENTS + FRAGMENTS * (c.warps_m / c.tile_m + c.warps_n / c.tile_n)
        products *= _narrow(c.chunk) * (UNEVEN if p.mask_of.is_of_input else 1)
        reached = REACHED_FLOAT32 if is_float32 else REACHED
        computing = products / (reached * rates.tensor_products_per_us(p.dtype))
        window = c.tile_m // UNIT_OUTPUTS * window_pixels(p)
        loading = rounds * inner * (window + p.taps * c.tile_n) * p.dtype.itemsize / device.l2_bytes_per_us
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        vector, chunks = widest_vector(p.group_channels, p.dtype), inner / c.chunk
        threads, together = threads_of(c), self.together(p, c, device)
        weights = [(vector, c.tile_n * c.chunk)]
        of_tap = step_us(p.dtype, weights, threads, c.stages, together, arrived_us=WEIGHTS_US)
        # Looks at a mask of any input, for each load, take as long as loads to begin.
        looked_at = [(vector, window * c.chunk)] * (2 if p.mask_of is MaskOf.ANY_INPUT else 1)
        of_window = step_us(p.dtype, looked_at, threads, p.taps + 1, together)
        waiting = self.rounds_of_block(p, c, device) * chunks * (p.taps * of_tap + of_window)
        filling = self.filling_us(p, c, device, widest_vector(p.filters // p.groups.count, p.dtype))
        beside = filling + self.storing_us(p, c, device) + self.listing_us(p, c)
        return rates.launch_us + START_US + beside + max(computing, loading, moving, waiting)

    def fitted(self, problem: MaskedConv2dProblem, config: WindowConvConfig) -> WindowConvConfig:
        """The shape with the chunk, no wider than there are channels, that should take least with its padding; 16 of
        float32, whose products need more registers.
        """
        channels = problem.group_channels
        most = 16 if problem.dtype is DType.FLOAT32 else max(16, min(config.chunk, channels))
        chunks = (n for n in (64, 32, 16) if n <= most)
        return replace(config, chunk=min(chunks, key=lambda n: round_up(channels, n) * _narrow(n)))

    def shared_bytes(self, problem: MaskedConv2dProblem, config: WindowConvConfig) -> int:
        """The bytes of two windows, of the stages of weights, of the sums on their way out and of the list of units."""
        p, c = problem, config
        pitch = c.chunk * p.dtype.itemsize + LOAD_BYTES
        windows = 2 * c.tile_m // UNIT_OUTPUTS * window_pixels(p) * pitch
        out = 4 * 16 * (min(32, c.tile_n // c.warps_n) + 8) * c.warps_m * c.warps_n
        return windows + c.stages * c.tile_n * pitch + out + list_bytes(p, threads_of(c))


def _narrow(chunk: int) -> float:
    """A factor of the products' time, by the channels of a window."""
    return 1 + CHUNK * (64 / chunk - 1)


FAMILY = WindowConv()
