"""Masked depthwise convolutions: each channel has a filter of its own, and a thread holds some outputs in registers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    LARGEST_COORDINATE,
    MaskedConvolution,
    geometry_constants,
    has_whole_units,
    live_share,
    result_constants,
    units_of,
)
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import SCHEDULERS, enough_registers, resident_blocks
from sparsegen.kernels.layouts.loads import LINE_BYTES, LOAD_BYTES, SECTOR, widest_vector
from sparsegen.kernels.rates import overlapped
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dProblem, MaskOf, Rest
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div

STATIC_BYTES = 48 << 10  # of shared memory that a kernel declares
MOST_UNROLLED = 4096  # multiply-adds of a thread
HELD_WEIGHTS, HELD_WORDS = 72, 48  # registers of a thread: weights, and pixels on their way
# Rows and columns of tiles to choose from.
TILES = ((1, 1), (1, 2), (2, 2), (4, 2), (8, 2), (4, 4), (8, 4))
PLANE_TILES = ((1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (8, 2), (4, 4), (4, 8), (8, 4), (8, 8))
ALL_LIVE = 0.9  # expected share of live blocks from which on pixels are read before the mask has come
# Instructions of a warp that depend on no count of its outputs, and of a narrow element's conversion; share of cycles
# in which a multiprocessor issues; cycles of a line of L1; memory's rate beside that of a copy; times that columns
# count which two thread blocks read; microseconds from a load to what it loaded, and of a launch in which no load has
# begun. From an H200's times of 92 problems of 1 to 32 images: expected times are .98 of those taken, by 1.11 up or
# down.
START_INSTRUCTIONS, UNPACK_INSTRUCTIONS, BUSY, LINE_CYCLES = 60.0, 4.0, 0.4, 1.4
MOVED, SHARED_COLUMNS, ARRIVED_US, STARTED_US = 1.3, 2.0, 0.72, 0.5
# Of channels that threads side by side read, to choose from; of stride 1, 256 took 1.1 times as long.
RUN_BYTES = (64, 128)
NORM = 4  # of instructions, lines, bytes in memory and in L2 (`overlapped`)


@dataclass(frozen=True)
class DepthwiseConvConfig(Config):
    """One point of the tuning space of `DepthwiseConv`."""

    tile_rows: int = tunable(4, (1, 2, 4, 8), "outputs of a thread, down")
    tile_columns: int = tunable(4, (1, 2, 4, 8), "outputs of a thread, across")
    lanes: int = tunable(1, (1, 2, 4, 8), "channels of a thread; 1 where channels lie in planes")
    channel_threads: int = tunable(
        1, (1, 8, 16, 32), "threads side by side along a block's channels; so are these"
    )
    threads: int = tunable(128, (64, 128, 256), "threads per block")


class DepthwiseConv(MaskedConvolution[DepthwiseConvConfig]):
    """Each thread computes a tile of outputs of its own channels in float32, and reads rows of pixels once, from the
    first to the last.

    Of images in planes, a thread has outputs that follow one another in a row; else neighbouring threads have
    neighbouring channels, whose weights the block keeps in shared memory. Nothing but loads and sums is done where most
    blocks are live: the mask is looked at in the end.
    """

    name = "depthwise_conv"
    summary = (
        "masked depthwise convolution: tiles of outputs in registers, rows of pixels one after the other"
    )
    source = (
        "Howard et al., MobileNets, 2017; Gale et al., Sparse GPU Kernels for Deep Learning, SC 2020, section VII-D "
        "(depthwise convolutions with fused bias and ReLU)"
    )
    size_names = (
        *("images", "height", "width", "channels"),
        *("out_height", "out_width", "mask_rows", "mask_columns"),
    )

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        p = problem
        is_depthwise = p.groups.count == p.channels == p.filters
        yield Constraint(
            is_depthwise,
            f"each channel has one filter: groups ({p.groups.count}) are channels ({p.channels}) and filters "
            f"({p.filters})",
        )
        of_image = p.channels * max(p.height * p.width, p.out_height * p.out_width)
        yield Constraint(
            max(of_image, units_of(p) * p.channels, p.channels * p.taps) < LARGEST_COORDINATE,
            "elements of an image, units of all planes, and weights are counted with 31 bits",
        )

    def constraints(
        self, problem: MaskedConv2dProblem, config: DepthwiseConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        p, c, size = problem, config, problem.dtype.itemsize
        if p.layout.has_planes:
            yield Constraint(
                c.lanes == c.channel_threads == 1,
                f"a thread has one channel of planes (lanes = {c.lanes}), as its block has no others beside "
                f"(channel_threads = {c.channel_threads})",
            )
        else:
            yield Constraint(
                p.channels % c.lanes == 0 and c.lanes * size <= LOAD_BYTES,
                f"lanes ({c.lanes}) divide the channels ({p.channels}), and take at most {LOAD_BYTES} bytes",
            )
            yield Constraint(
                c.channel_threads > 1,
                f"neighbouring threads read neighbouring channels (channel_threads = {c.channel_threads})",
            )
            taken = 4 * c.lanes * c.channel_threads * p.taps
            yield Constraint(
                taken <= STATIC_BYTES, f"weights take at most {STATIC_BYTES} bytes of shared memory ({taken})"
            )
        unrolled = _outputs(c) * c.lanes * p.taps
        yield Constraint(
            unrolled <= MOST_UNROLLED, f"a thread has at most {MOST_UNROLLED} products ({unrolled})"
        )
        threads = self._threads(p, c)
        yield Constraint(threads < LARGEST_COORDINATE, f"threads ({threads}) are counted with 31 bits")
        yield enough_registers(_registers(p, c), c.threads, at_a_time=8)

    def is_worth_trying(
        self, problem: MaskedConv2dProblem, config: DepthwiseConvConfig, device: Device
    ) -> bool:
        """True unless a tile has twice as many rows or columns as the result, or a block twice as many channels. It
        rests on arithmetic: such threads have little to do.
        """
        p, c = problem, config
        fits = c.tile_rows < 2 * p.out_height and c.tile_columns < 2 * p.out_width
        return fits and (c.channel_threads <= 8 or c.lanes * c.channel_threads < 2 * p.channels)

    def constants(self, problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> Mapping[str, Value]:
        p, c = problem, config
        geometry = geometry_constants(p)
        del geometry["groups"]  # they are the channels, whose count is a size of the call
        found = {
            **geometry,
            "layout": p.layout.value,
            "whole_units": has_whole_units(p),
            **result_constants(p),
            "reads_all": p.density.share >= ALL_LIVE,
        }
        if p.layout.has_planes:
            vector_x, vector_y = _vectors(p, c)
            found |= {"vector_x": vector_x, "vector_y": vector_y}
        return found

    def launch(
        self,
        problem: MaskedConv2dProblem,
        config: DepthwiseConvConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(self._threads(problem, config) // config.threads, 1, 1), block=(config.threads, 1, 1)
        )

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: DepthwiseConvConfig, device: Device
    ) -> float:
        p, c, rates, live = problem, config, device.expected_rates, live_share(problem)
        warps = self._threads(p, c) / WARP
        loads, load_bytes, elements = _loads(p, c)
        stored = _vectors(p, c)[1] if p.layout.has_planes else c.lanes  # elements of a store
        stores = _outputs(c) * c.lanes / stored
        products = _outputs(c) * c.lanes * p.taps
        unpacked = UNPACK_INSTRUCTIONS * elements if p.dtype is not DType.FLOAT32 else 0.0
        issued = START_INSTRUCTIONS + live * (loads + unpacked + products) + stores
        issuing = warps * issued / (SCHEDULERS * BUSY * device.cycles_per_us)
        # Lines of L1 that the loads and stores of a warp meet; threads side by side read bytes that follow one another.
        beside = WARP if p.layout.has_planes else min(WARP, c.channel_threads)
        store_bytes = c.tile_columns * p.dtype.itemsize if p.layout.has_planes else load_bytes
        load_run, store_run = beside * load_bytes, beside * store_bytes
        lines = live * loads * max(1.0, load_run / LINE_BYTES) + stores * max(1.0, store_run / LINE_BYTES)
        meeting = LINE_CYCLES * warps * WARP / beside * lines / device.cycles_per_us
        resident = resident_blocks(c.threads, _registers(p, c), 0, device) * c.threads
        waves = max(1.0, warps * WARP / (resident * device.multiprocessors))
        turns = ceil_div(_sides(p, c)[0], _rows_ahead(p, c)) + (live < ALL_LIVE)
        of_wave = turns * ARRIVED_US + issued / rates.clock_mhz
        scattered = 0.0 if p.layout.has_planes else min(1.0, SECTOR / load_run)  # short runs take more
        moving = (1 + scattered) * p.cost(0).bytes / (MOVED * rates.copy_bytes_per_us)
        # Rows between tiles, and columns between thread blocks, are read from L2 for both.
        down = _reach(c.tile_rows, p.filter_size.rows, p.stride.rows, p.dilation.rows) / c.tile_rows
        columns = c.threads // c.channel_threads * c.tile_columns
        across = _reach(columns, p.filter_size.columns, p.stride.columns, p.dilation.columns) / columns
        shared = 0.0 if p.layout.has_planes else SHARED_COLUMNS * max(0.0, across / p.stride.columns - 1)
        read = live * p.operands(0)[0].nbytes * max(1.0, down / p.stride.rows) * (1 + shared)
        parts = max(1.0, min(SECTOR, store_bytes) / (stored * p.dtype.itemsize))  # of a sector, one by one
        passing = (read + parts * p.result(0).nbytes) / device.l2_bytes_per_us
        working = overlapped(NORM, issuing, meeting, moving, passing)
        return rates.launch_us + STARTED_US + max(of_wave + working, waves * of_wave)

    def heuristic(
        self, problem: MaskedConv2dProblem, features: Features, device: Device
    ) -> DepthwiseConvConfig:
        """The tile, channels and threads that should take the least time."""
        some = _candidates(problem)
        return self.fastest_valid(problem, features, some, device, otherwise=DepthwiseConvConfig())

    @staticmethod
    def _threads(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> int:
        """Threads of all blocks."""
        p, c = problem, config
        tiles = ceil_div(p.out_height, c.tile_rows) * ceil_div(p.out_width, c.tile_columns) * p.batch
        if p.layout.has_planes:
            return ceil_div(tiles * p.channels, c.threads) * c.threads
        parts = ceil_div(p.channels, c.lanes * c.channel_threads)
        return parts * ceil_div(tiles, c.threads // c.channel_threads) * c.threads


def _candidates(problem: MaskedConv2dProblem) -> Iterator[DepthwiseConvConfig]:
    """Yields configs to choose from; the smallest tiles are valid for every problem in scope."""
    p = problem
    if p.layout.has_planes:
        yield from (DepthwiseConvConfig(down, across) for down, across in PLANE_TILES)
        return
    lanes = [n for n in (8, 4, 2, 1) if n * p.dtype.itemsize <= LOAD_BYTES and p.channels % n == 0][:3]
    for (down, across), of_thread, beside in product(TILES, lanes, (8, 16, 32)):
        run = beside * of_thread * p.dtype.itemsize
        if RUN_BYTES[0] <= run <= RUN_BYTES[1]:
            yield DepthwiseConvConfig(down, across, of_thread, beside)


def _outputs(config: DepthwiseConvConfig) -> int:
    return config.tile_rows * config.tile_columns


def _reach(outputs: int, taps: int, stride: int, dilation: int) -> int:
    """Pixels that outputs beside each other read along an axis, with those between them."""
    return (outputs - 1) * stride + (taps - 1) * dilation + 1


def _sides(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> tuple[int, int]:
    """Rows and columns of the pixels that a thread reads."""
    p, c = problem, config
    return (
        _reach(c.tile_rows, p.filter_size.rows, p.stride.rows, p.dilation.rows),
        _reach(c.tile_columns, p.filter_size.columns, p.stride.columns, p.dilation.columns),
    )


def _vectors(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> tuple[int, int]:
    """Elements of a row of a plane that a load and a store move: all of them count or none, by the mask too."""
    p, c = problem, config
    vector_x = math.gcd(widest_vector(p.width, p.dtype), c.tile_columns * p.stride.columns)
    vector_y = math.gcd(widest_vector(p.out_width, p.dtype), c.tile_columns)
    if p.mask_of is MaskOf.ANY_INPUT:
        vector_x = math.gcd(vector_x, p.mask_block.columns)
    if p.mask_of is MaskOf.OUTPUT and p.rest is Rest.KEPT:
        vector_y = math.gcd(vector_y, p.mask_block.columns)
    return vector_x, vector_y


def _loads(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> tuple[float, float, float]:
    """A thread's loads of pixels, the bytes from one thread's to the next one's, and elements that it loads."""
    p, c, (rows, columns) = problem, config, _sides(problem, config)
    if not p.layout.has_planes:
        return rows * columns, c.lanes * p.dtype.itemsize, rows * columns * c.lanes
    vector = _vectors(p, c)[0]
    lead = -p.padding.columns % vector
    pieces = [
        min(vector, lead + columns - i * vector) - (lead if i == 0 else 0)
        for i in range(ceil_div(lead + columns, vector))
    ]
    loads = sum(n if n <= 2 and n < vector else 1 for n in pieces)
    return rows * loads, c.tile_columns * p.stride.columns * p.dtype.itemsize, rows * columns


def _rows_ahead(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> int:
    """Rows of pixels that are on their way at once, as the template has it."""
    held = max(2, HELD_WORDS // _row_words(problem, config))
    return min(held, _sides(problem, config)[0])


def _row_words(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> int:
    """Registers of a thread for a row of pixels."""
    p, c, columns = problem, config, _sides(problem, config)[1]
    if p.layout.has_planes:
        return columns * p.dtype.itemsize // 4 + 1
    return columns * ceil_div(c.lanes * p.dtype.itemsize, 4)


def _registers(problem: MaskedConv2dProblem, config: DepthwiseConvConfig) -> int:
    """Estimates the registers of a thread: sums, weights and pixels, and what finds them."""
    p, c = problem, config
    weights = p.taps * c.lanes
    held = weights if weights <= HELD_WEIGHTS or p.layout.has_planes else 2 * c.lanes
    return _outputs(c) * c.lanes + held + _rows_ahead(p, c) * _row_words(p, c) + 20


FAMILY = DepthwiseConv()
