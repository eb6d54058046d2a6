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
from sparsegen.kernels.layouts.limits import (
    SCHEDULERS,
    TENSOR_CORES,
    capable,
    resident_blocks,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.loads import LOAD_BYTES, widest_vector
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.matrix.features import Features
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import MaskedConv2dProblem, MaskOf, Rest
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div, round_up

MOST_CHANNELS, MOST_FILTERS, MOST_WEIGHTS = 8, 32, 4096
LARGEST_GRID = 1 << 31
OWN_ROWS = 4  # outputs of a thread at a time, down; across they are 16 bytes
UNROLLED = 64  # most weights that stay in registers
# Of an H200 (256 images of 512², one filter, 0 to 95 % dead): instructions that load a vector, and those for a
# multiply-add; share of the cycles in which a multiprocessor issues.
LOAD_INSTRUCTIONS, ADDED, BUSY = 26, 1.35, 0.9
REGISTERS, FEW_REGISTERS = 128, 64  # of a thread, about: with weights in shared memory, and in registers
ACCESS_CYCLES = 4  # of shared memory, for 16 bytes of each of a warp's threads
LATENCY = 5.5  # cycles of an instruction where one warp alone is at work (3 → 32 channels, one image of 512²)
TILE_US = 2.3  # microseconds until a tile's mask and pixels are there


@dataclass(frozen=True)
class StripConvConfig(Config):
    """One point of the tuning space of `StripConv`."""

    units_down: int = tunable(4, (1, 2, 4), "rows of units of 8 x 8 outputs in a tile")
    units_across: int = tunable(16, (4, 8, 16), "columns of units in a tile")
    threads: int = tunable(256, (128, 256), "threads per block")


class StripConv(MaskedConvolution[StripConvConfig]):
    """Each block computes a tile of outputs in float32, and loads the pixels that live units read to shared memory
    once, 16 bytes at a time where rows of images let it.

    A thread computes four rows of outputs, which share the pixels that it reads. The operands may lie in pinned memory
    of the host: only pixels that are needed then cross the bus.
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
        rows = p.filter_size.rows
        yield Constraint(rows <= UNIT + 1, f"a filter has at most {UNIT + 1} rows ({rows})")
        yield Constraint(p.mask_of is not MaskOf.ANY_INPUT, "x is zero outside of a mask of the input")
        least = self._tiles(p, StripConvConfig(units_down=1, units_across=4))
        yield Constraint(least < LARGEST_GRID, "tiles are counted with 31 bits")

    def constraints(
        self, problem: MaskedConv2dProblem, config: StripConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield capable(device, TENSOR_CORES)  # asynchronous copies
        yield shared_memory_fits("pixels", self._shared_bytes(problem, config), device)

    def constants(self, problem: MaskedConv2dProblem, config: StripConvConfig) -> Mapping[str, Value]:
        p, chunk, together = problem, LOAD_BYTES // problem.dtype.itemsize, filters_together(problem)
        if p.filters == 1:
            is_whole = p.out_width % chunk == 0 and (has_whole_units(p) or p.mask_of is MaskOf.INPUT)
            vector = chunk if is_whole else 1
        else:
            vector = together if p.filters % together == 0 and together != 3 else 1
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
            "vector_x": widest_vector(p.width * p.channels, p.dtype),
            "vector": vector,
            "together": together,
            "unrolls": _is_unrolled(p),
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
        p, c, rates = problem, config, device.expected_rates
        chunk, live, units = LOAD_BYTES // p.dtype.itemsize, live_share(p), c.units_down * c.units_across
        met = any_live(live, units)  # share of tiles that have something to do
        tiles = self._tiles(p, c) * (met if p.rest is Rest.KEPT else 1.0)
        patches = units * live / met * (UNIT // OWN_ROWS) * UNIT / chunk  # of a tile
        added, accesses = _work(p, chunk)
        cycles = self._loading(p, c) / SCHEDULERS + patches / WARP * (
            added / SCHEDULERS + ACCESS_CYCLES * accesses
        )
        registers = FEW_REGISTERS if _is_unrolled(p) else REGISTERS
        resident = resident_blocks(c.threads, registers, self._shared_bytes(p, c), device)
        together = min(resident, max(1.0, tiles / device.multiprocessors))
        waves = max(1.0, tiles / (resident * device.multiprocessors))
        alone = LATENCY * added * ceil_div(round(patches), c.threads)
        working = max(together * cycles / BUSY, alone) / rates.clock_mhz
        return rates.launch_us + max(waves * (TILE_US + working), p.cost(0).bytes / rates.copy_bytes_per_us)

    def _loading(self, problem: MaskedConv2dProblem, config: StripConvConfig) -> float:
        """Instructions of warps that load the pixels of a tile."""
        rows, chunks = self._window(problem, config)
        vector = widest_vector(problem.width * problem.channels, problem.dtype)
        vectors = rows * chunks * LOAD_BYTES // problem.dtype.itemsize / vector
        return LOAD_INSTRUCTIONS * vectors / WARP

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

    def _shared_bytes(self, problem: MaskedConv2dProblem, config: StripConvConfig) -> int:
        """The bytes of pixels, weights, bias and of what units are active."""
        p, c, units = problem, config, config.units_down * config.units_across
        rows, chunks = self._window(p, c)
        pitch = chunks + ((chunks - 1) // p.channels if p.channels % 2 == 0 else 0) | 1
        floats = round_up(p.filters, filters_together(p)) * (p.taps * p.channels + 1)
        kinds = (rows - 1) // p.mask_block.rows + 2 if p.mask_of is MaskOf.INPUT else c.units_down
        words = floats + kinds * ceil_div(chunks, WARP) + 1
        return round_up(
            LOAD_BYTES * rows * pitch + self._mask_bytes(p, c) + 4 * words + 2 * units, LOAD_BYTES
        )

    @staticmethod
    def _mask_bytes(problem: MaskedConv2dProblem, config: StripConvConfig) -> int:
        """The bytes of the blocks of the mask that a tile meets."""
        p, size = problem, problem.filter_size
        reach = (size.rows - 1, size.columns - 1) if p.mask_of is MaskOf.INPUT else (0, 0)
        rows, columns = config.units_down * UNIT + reach[0], config.units_across * UNIT + reach[1]
        words = (columns - 1) // p.mask_block.columns // WORD_BITS + 2
        return ((rows - 1) // p.mask_block.rows + 2) * words * WORD_BITS // 8

    @staticmethod
    def _window(problem: MaskedConv2dProblem, config: StripConvConfig) -> tuple[int, int]:
        """Rows of the pixels that a tile reads, and chunks of a row."""
        p, chunk = problem, LOAD_BYTES // problem.dtype.itemsize
        pixels = config.units_across * UNIT + p.filter_size.columns - 1
        lead = -p.padding.columns * p.channels % chunk
        return config.units_down * UNIT + p.filter_size.rows - 1, ceil_div(lead + pixels * p.channels, chunk)


def _is_unrolled(problem: MaskedConv2dProblem) -> bool:
    """True if the weights of the filters that a thread computes at a time stay in registers."""
    return problem.taps * problem.channels * filters_together(problem) <= UNROLLED


def _work(problem: MaskedConv2dProblem, chunk: int) -> tuple[float, float]:
    """Instructions of a thread for its outputs, and accesses of 16 bytes to shared memory."""
    p, size, together = problem, problem.filter_size, filters_together(problem)
    weights, parts = p.taps * p.channels, ceil_div(p.filters, together)
    segment = ceil_div((chunk + size.columns - 1) * p.channels + chunk - 1, chunk)
    looks = 1 if _is_unrolled(p) else OWN_ROWS  # at each weight
    accesses = (OWN_ROWS + size.rows - 1) * segment + looks * weights * together / 4
    return ADDED * OWN_ROWS * chunk * together * parts * weights, parts * accesses


def filters_together(problem: MaskedConv2dProblem) -> int:
    """The filters that a thread computes at a time: outputs of four rows and 16 bytes of columns each."""
    return min(problem.filters, problem.dtype.itemsize)


FAMILY = StripConv()
