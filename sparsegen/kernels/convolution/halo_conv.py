"""Masked convolutions on Hopper's tensor cores: all taps of a filter read one box of pixels with its halo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.convolution.masked_convolution import (
    UNIT_OUTPUTS,
    MaskedConvolution,
    countable_outputs,
    has_whole_units,
    live_blocks_share,
    live_share,
    parted_outputs_us,
    result_constants,
    units_of,
)
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import shared_memory_fits, warpgroups_capable
from sparsegen.kernels.layouts.loads import ARRIVED_US, widest_vector
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.operators import ConvEpilogue, DType, Given, MaskedConv2dProblem, MaskOf, Rest
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.integers import ceil_div, round_up

ITEM_BYTES = 2
ALIGNMENT = 1024  # bytes, of boxes and weights in shared memory
THREADS = 384
WARPS = 8  # consumer warps
LISTED_UNITS = 512  # units that a thread block's list has room for
MOST_UNIT_ROWS, MOST_UNIT_COLUMNS = 1 << 20, 1 << 12  # limits of units in all images: a unit is one word
LONGEST_WORD = 32  # taps at most, of a filter whose mask covers the input: one bit of a word for each
KINDS = 5  # kinds of units, with a mask of the input
COPIED = 8  # channels of 16 bytes, of which TMA's strides are multiples
LARGEST_STRIDE = 4
# What a tile of filters and a chunk of channels take beside their products, in filters and channels: small ones have
# more loads, barriers and reads of pixels for each product. Estimates, not fitted.
TILES, TILE_COST = (256, 128, 64, 32), 32
CHUNKS, CHUNK_COST = (64, 32, 16), 8
# Fitted to measurements: the prologue in microseconds, and factors on the times of tensor cores and memory.
START_US, PRODUCTS, MOVED = 6.0, 1.1, 1.1
DEPTHS = (3, 4, 6)  # stages of pixels for few units, whose boxes are waited for


@dataclass(frozen=True)
class HaloConvConfig(Config):
    """One point of the tuning space of `HaloConv`."""

    tile_n: int = tunable(64, (32, 64, 128, 256), "filters per thread block")
    chunk: int = tunable(64, (16, 32, 64), "channels per pipeline stage")
    group_units: int = tunable(2, (1, 2), "units of 8 x 8 outputs that a warpgroup computes at once")
    input_stages: int = tunable(2, (2, 3, 4, 6), "pipeline stages of pixels: boxes in shared memory")
    weight_stages: int = tunable(
        4,
        (3, 4, 6, 9, 12),
        "pipeline stages of weights in shared memory; if they hold all weights of the tile, these are loaded once",
    )
    stage_taps: int = tunable(1, (1, 3, 5), "filter taps per pipeline stage of weights")
    lead: int = tunable(
        0,
        (0, 1, 2, 3),
        "pipeline stages by which one consumer warpgroup runs ahead of the other",
        searched=(0, 3),
    )
    deferred: int = tunable(0, (0, 1), "1: a round's outputs are stored beside the next one's products")
    unit_cost: int = tunable(
        0,
        (0, 1, 2, 3),
        "with a mask of the input, what a unit costs beside its taps, in taps; blocks share units by costs, 0: evenly",
    )


# The fastest configs on an H100. Each tuple goes from problems with many live units to problems with few. LARGE is for
# 3 x 3 filters, RESIDENT for 3 x 3 filters whose weights all fit into shared memory, PIXELS for 1 x 1 filters, STRIDED
# for strides, and OTHERS for larger filters and masks of the input.
LARGE = (
    HaloConvConfig(tile_n=128, group_units=2, input_stages=2, weight_stages=6, lead=3, deferred=1),
    HaloConvConfig(tile_n=64, group_units=2, input_stages=2, weight_stages=4, stage_taps=3, lead=2),
    HaloConvConfig(tile_n=64, group_units=1, input_stages=3, weight_stages=4, stage_taps=3, lead=2),
)
# Replaces the second of LARGE for up to 128 channels: chunks are narrow, so that all weights of 64 filters stay
# in shared memory beside the boxes.
STAYING = HaloConvConfig(tile_n=64, chunk=32, group_units=1, input_stages=4, weight_stages=12, stage_taps=3)
RESIDENT = (
    HaloConvConfig(tile_n=64, group_units=2, input_stages=2, weight_stages=3, stage_taps=3),
    HaloConvConfig(tile_n=64, group_units=1, input_stages=4, weight_stages=3, stage_taps=3),
)
PIXELS = (
    HaloConvConfig(tile_n=128, group_units=1, input_stages=6, weight_stages=4, lead=3),
    HaloConvConfig(tile_n=256, group_units=1, input_stages=4, weight_stages=4),
    HaloConvConfig(tile_n=128, group_units=1, input_stages=4, weight_stages=4),
)
OTHERS = (
    HaloConvConfig(tile_n=128, group_units=2, input_stages=2, weight_stages=6),
    HaloConvConfig(tile_n=128, group_units=1, input_stages=3, weight_stages=6),
    HaloConvConfig(tile_n=128, group_units=1, input_stages=2, weight_stages=6),
)
STRIDED = (HaloConvConfig(tile_n=128, group_units=2, input_stages=3, weight_stages=4), *OTHERS[1:])
BY_COSTS = replace(OTHERS[0], unit_cost=3)  # for masks of the input with many live units
# Share of live blocks from which on that pays with a mask of any input: 8 % faster with half of them, 6 % slower with a
# tenth. Where nothing is filled with zeros it pays from COST_ROUNDS waves of units on: 11 % faster with a tenth.
SHARED_BY_COSTS = 0.3
ENOUGH_ROUNDS = 6  # waves of units over all multiprocessors, from which on an uneven last wave costs little
STAYING_ROUNDS = 7  # the same where weights stay in smaller rounds, too
COST_ROUNDS = 3
STRIDED_ROUNDS = 3  # the same with a stride of 2, where weights take as long to load as pixels


class HaloConv(MaskedConvolution[HaloConvConfig]):
    """A persistent kernel: every thread block lists the live units of the mask and computes an equal share of them.

    The producer warp copies a box of pixels with its halo to shared memory once for each chunk of channels. Each tap
    reads its operand from another offset in that box. With a stride of 2 there is one box for each class of taps that
    read the same pixels.
    """

    name = "halo_conv"
    summary = "masked convolution on warpgroups' tensor cores: taps are places in boxes of pixels with a halo"
    source = (
        "Ren et al., SBNet, CVPR 2018 (active blocks alone are computed); Shah and Nair, Block Sparse Convolution; "
        "implicit GEMM: Chetlur et al., cuDNN, 2014; warps that load beside warps that multiply: NVIDIA, Hopper tuning "
        "guide"
    )
    mapped_names = ("x", "w")
    size_names = ("images", "out_height", "out_width", "channels", "filters", "mask_rows", "mask_columns")

    def scope(self, problem: MaskedConv2dProblem) -> Iterator[Constraint]:
        p, size = problem, problem.filter_size
        yield Constraint(p.dtype is not DType.FLOAT32, "warpgroups multiply 16-bit elements")
        yield Constraint(not p.layout.has_planes, f"channels are innermost (layout {p.layout})")
        yield Constraint(p.groups.count == 1, f"filters read all channels ({p.groups.count} groups)")
        is_dilated = (p.dilation.rows, p.dilation.columns) != (1, 1)
        yield Constraint(
            not is_dilated or (p.stride.rows == 1 and p.mask_of is MaskOf.OUTPUT),
            f"a dilation ({p.dilation}) comes with a stride of 1 and a mask of the output",
        )
        yield Constraint(
            p.channels % COPIED == 0,
            f"pixels are copied by TMA, whose strides are multiples of {COPIED} channels ({p.channels})",
        )
        yield Constraint(
            has_whole_units(p), f"blocks of the mask ({p.mask_block}) are whole units of {UNIT} x {UNIT}"
        )
        yield Constraint(
            p.stride.rows == p.stride.columns <= LARGEST_STRIDE,
            f"both strides ({p.stride}) are equal, {LARGEST_STRIDE} at most",
        )
        if p.mask_of.is_of_input:
            yield Constraint(
                p.padding.rows <= (size.rows - 1) // 2 and p.padding.columns <= (size.columns - 1) // 2,
                f"with a mask of the input the padding ({p.padding}) is at most half of the filter ({size})",
            )
            yield Constraint(
                p.stride.rows == 1 and p.taps <= LONGEST_WORD,
                f"with a mask of the input the stride is 1 and a filter has at most {LONGEST_WORD} taps ({p.taps})",
            )
        rows, columns = ceil_div(p.out_height, UNIT) * p.batch, ceil_div(p.out_width, UNIT)
        yield Constraint(
            rows < MOST_UNIT_ROWS and columns <= MOST_UNIT_COLUMNS,
            f"units have less than {MOST_UNIT_ROWS} rows ({rows}), at most {MOST_UNIT_COLUMNS} columns ({columns})",
        )
        yield countable_outputs(problem)

    def constraints(
        self, problem: MaskedConv2dProblem, config: HaloConvConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        p, c = problem, config
        yield warpgroups_capable(device)
        yield Constraint(
            c.group_units * c.tile_n <= 256,
            f"a thread has at most 128 sums ({c.group_units} units of {c.tile_n} filters)",
        )
        yield Constraint(
            c.stage_taps == 1
            or (p.taps % c.stage_taps == 0 and p.stride.rows == 1 and p.mask_of is MaskOf.OUTPUT),
            f"stages of {c.stage_taps} taps divide a filter's ({p.taps}), none of which is left out",
        )
        # About how many pipeline stages of weights are used with one box of pixels.
        of_box = ceil_div(p.taps, c.stage_taps * p.stride.rows**2)
        yield Constraint(
            c.lead < c.weight_stages and c.lead < c.input_stages * max(1, of_box),
            f"the lead ({c.lead}) is less than the stages that there are",
        )
        yield Constraint(
            not c.unit_cost or p.mask_of.is_of_input, "units cost what their taps do with a mask of the input"
        )
        yield shared_memory_fits("stages", self._shared_bytes(p, c), device)

    def is_worth_trying(self, problem: MaskedConv2dProblem, config: HaloConvConfig, device: Device) -> bool:
        """True for chunks of at least 64 channels (32 if all weights stay in shared memory, or more would lie beyond
        the problem's), tiles and chunks that are mostly filled, and no more stages or lead than there are weights to
        load. It rests on the configs that docs/notes/masked-convolution.md has times of.
        """
        c, stages = config, self._weight_stages_in_all(problem, config)
        stays = stages <= c.weight_stages  # narrow chunks leave room for all weights
        if c.chunk < min(32 if stays else 64, self._chunk(problem)):
            return False
        if c.chunk >= 2 * max(CHUNKS[-1], problem.channels) or c.tile_n >= 2 * max(
            TILES[-1], problem.filters
        ):
            return False
        if c.unit_cost and problem.taps == 1:
            return False
        return c.weight_stages <= max(stages, 3) and c.lead < max(2, stages)

    def constants(self, problem: MaskedConv2dProblem, config: HaloConvConfig) -> Mapping[str, Value]:
        p = problem
        return {
            "dtype": p.dtype.value,
            "r": p.filter_size.rows,
            "s": p.filter_size.columns,
            "stride": p.stride.rows,
            "padding_rows": p.padding.rows,
            "padding_columns": p.padding.columns,
            "dilation_rows": p.dilation.rows,
            "dilation_columns": p.dilation.columns,
            "block_unit_rows": p.mask_block.rows // UNIT,
            "block_unit_columns": p.mask_block.columns // UNIT,
            **result_constants(p),
            "resident": self._is_resident(p, config),
            "whole_tiles": p.filters % config.tile_n == 0,
            "vector_y": widest_vector(p.filters, p.dtype),
            "list_units": LISTED_UNITS,
            **({"waits_late": True} if p.given is Given.EARLIER else {}),
        }

    def tensor_map(self, problem: MaskedConv2dProblem, config: HaloConvConfig, name: str) -> TensorMap:
        p, c = problem, config
        swizzle = Swizzle(c.chunk * ITEM_BYTES)
        if name == "x":
            rows, columns = self._box_sides(p)
            box, pixel = (c.chunk, columns, rows, 1), p.channels * ITEM_BYTES
            return TensorMap(
                "x",
                p.dtype,
                (p.channels, p.width, p.height, p.batch),
                (pixel, p.width * pixel, p.height * p.width * pixel),
                box,
                swizzle,
                (1, p.stride.columns, p.stride.rows, 1),
                l2_bytes=128,
            )
        tap = p.channels * ITEM_BYTES
        return TensorMap(
            "w",
            p.dtype,
            (p.channels, p.filters, p.taps),
            (p.taps * tap, tap),
            (c.chunk, c.tile_n, 1),
            swizzle,
            l2_bytes=128,
        )

    def launch(
        self, problem: MaskedConv2dProblem, config: HaloConvConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        """One thread block per multiprocessor, or a multiple of that if the lists would not have room for all units."""
        tiles, units = ceil_div(problem.filters, config.tile_n), units_of(problem)
        parts = max(1, device.multiprocessors // tiles)
        room = LISTED_UNITS - 2 * config.group_units
        if cost := config.unit_cost:  # a block may get as many more units as the cheapest ones cost less
            units, room = units * (problem.taps + cost) // (1 + cost), room - KINDS
        rounds = 1 + units // (parts * room)
        return Launch(
            grid=(parts * rounds * tiles, 1, 1),
            block=(THREADS, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
            starts_early=True,
        )

    def analytic_us(
        self, problem: MaskedConv2dProblem, features: Features, config: HaloConvConfig, device: Device
    ) -> float:
        p, rates = problem, device.expected_rates
        filters, channels = round_up(p.filters, config.tile_n), round_up(p.channels, config.chunk)
        units = live_share(p) * units_of(p)
        parts = max(1, device.multiprocessors // max(1, filters // 64))
        rounds = max(1.0, round_up(units, parts))
        products = rounds * UNIT_OUTPUTS * filters * channels * p.taps
        computing = PRODUCTS * products / rates.tensor_products_per_us(p.dtype)
        moving = MOVED * p.cost(0).bytes / rates.copy_bytes_per_us
        # A block's boxes, as many of which are on their way at once as there are stages.
        c, parts = config, max(1, device.multiprocessors // ceil_div(p.filters, config.tile_n))
        items = max(1, ceil_div(units, 2 * c.group_units * parts))
        waiting = items * channels / c.chunk * self._boxes(p) * ARRIVED_US / c.input_stages
        storing = parted_outputs_us(p, 1.0 if p.rest is Rest.FILLED else live_share(p), device)
        return rates.launch_us + START_US + max(computing, moving, waiting) + storing

    def heuristic(self, problem: MaskedConv2dProblem, features: Features, device: Device) -> HaloConvConfig:
        """The config for enough waves, with more stages or wider chunks where boxes of few units are waited for."""
        found = self._of_waves(problem, device)
        deeper = (
            replace(found, chunk=chunk, input_stages=stages)
            for chunk in dict.fromkeys((found.chunk, CHUNKS[0]))
            for stages in DEPTHS
            if stages > found.input_stages
        )
        some = (found, *(c for c in deeper if self.is_valid(problem, c, device)))
        return self.fastest(problem, features, some, device)

    def _of_waves(self, problem: MaskedConv2dProblem, device: Device) -> HaloConvConfig:
        """The first config for such filters whose tiles fill the device for enough waves, else the last one."""
        p = problem
        some = self._fast(p, device)
        for config, rounds in some:
            parts = max(1, device.multiprocessors // ceil_div(p.filters, config.tile_n))
            live = (live_share(p) if config.unit_cost else live_blocks_share(p)) * units_of(p)
            if live >= rounds * 2 * config.group_units * parts:
                return config
        if some:
            return some[-1][0]
        return HaloConvConfig(tile_n=32, chunk=self._chunk(p), group_units=1, input_stages=2, weight_stages=3)

    def alternatives(
        self, problem: MaskedConv2dProblem, features: Features, device: Device
    ) -> tuple[HaloConvConfig, ...]:
        """The other configs for such filters: with some masks, they leave fewer multiprocessors idle."""
        some = tuple(dict.fromkeys(config for config, _ in self._fast(problem, device)))
        if not problem.mask_of.is_of_input:
            return some
        by_costs = (replace(config, unit_cost=2) for config in some[:2])
        return (*some, *(c for c in by_costs if self.is_valid(problem, c, device)))

    def _fast(self, problem: MaskedConv2dProblem, device: Device) -> tuple[tuple[HaloConvConfig, int], ...]:
        """The fast configs for such filters, with tiles and chunks that suit the problem's filters and channels, and
        the waves of units over all multiprocessors from which on each is taken.
        """
        p, chunk = problem, self._chunk(problem)
        # A residual is read where outputs are finished, and would take the registers of those that wait.
        waits = p.epilogue is not ConvEpilogue.BIAS_RESIDUAL
        fitted = (
            (
                replace(
                    c,
                    chunk=min(c.chunk, chunk),
                    tile_n=self._tile(p, c.tile_n),
                    deferred=c.deferred if waits else 0,
                ),
                rounds,
            )
            for c, rounds in self._of_filters(p, chunk)
        )
        return tuple((c, rounds) for c, rounds in fitted if self.is_valid(p, c, device))

    def _of_filters(self, problem: MaskedConv2dProblem, chunk: int) -> list[tuple[HaloConvConfig, int]]:
        """Returns configs for such filters, from many live units to few, each with the rounds that it needs."""
        p = problem
        others = [(c, ENOUGH_ROUNDS) for c in OTHERS]
        if (p.dilation.rows, p.dilation.columns) != (1, 1):  # boxes are large
            return others
        if p.taps == 1:
            return [(c, ENOUGH_ROUNDS) for c in PIXELS]
        if p.stride.rows > 1:
            return [(c, STRIDED_ROUNDS) for c in STRIDED]
        if p.mask_of is MaskOf.INPUT or (p.mask_of.is_of_input and p.density.share >= SHARED_BY_COSTS):
            return [(BY_COSTS, COST_ROUNDS), *others]
        if p.mask_of is MaskOf.ANY_INPUT:
            # While a warp writes zeros over one box, others are loaded: 4 % faster with 128 channels, a tenth live.
            return [others[1], others[0], others[2]]
        if p.taps != 9:
            return others
        if p.channels <= chunk:
            return [(RESIDENT[0], STAYING_ROUNDS), (RESIDENT[1], ENOUGH_ROUNDS)]
        if not self._is_resident(p, replace(STAYING, chunk=min(STAYING.chunk, chunk))):
            return [(c, ENOUGH_ROUNDS) for c in LARGE]
        return [(LARGE[0], STAYING_ROUNDS), (STAYING, ENOUGH_ROUNDS), (LARGE[2], ENOUGH_ROUNDS)]

    @staticmethod
    def _tile(problem: MaskedConv2dProblem, largest: int) -> int:
        """The filters of a tile with the fewest products, those beyond the problem's too, and reads of pixels."""
        some = (tile for tile in TILES if tile <= largest)
        return min(some, key=lambda tile: ceil_div(problem.filters, tile) * (tile + TILE_COST))

    @staticmethod
    def _chunk(problem: MaskedConv2dProblem) -> int:
        """The channels of a stage with the fewest products, those beyond the problem's too, and barriers."""
        return min(CHUNKS, key=lambda chunk: ceil_div(problem.channels, chunk) * (chunk + CHUNK_COST))

    @staticmethod
    def _boxes(problem: MaskedConv2dProblem) -> int:
        """The boxes of a chunk: one for each class of taps that read the same pixels."""
        size, stride = problem.filter_size, problem.stride
        return min(size.rows, stride.rows) * min(size.columns, stride.columns)

    @staticmethod
    def _box_sides(problem: MaskedConv2dProblem) -> tuple[int, int]:
        """Rows and columns of a box: the pixels that a unit's outputs read, at the stride's distance."""
        p, size = problem, problem.filter_size
        rows = UNIT + (size.rows - 1) * p.dilation.rows // p.stride.rows
        columns = UNIT + (size.columns - 1) * p.dilation.columns // p.stride.columns
        return rows, columns

    @staticmethod
    def _weight_stages_in_all(problem: MaskedConv2dProblem, config: HaloConvConfig) -> int:
        """The number of pipeline stages that the weights of one tile of filters fill."""
        return ceil_div(problem.channels, config.chunk) * ceil_div(problem.taps, config.stage_taps)

    def _is_resident(self, problem: MaskedConv2dProblem, config: HaloConvConfig) -> bool:
        """True if all weights of a tile of filters fit into the pipeline stages, so that they are loaded once."""
        return self._weight_stages_in_all(problem, config) <= config.weight_stages

    def _shared_bytes(self, problem: MaskedConv2dProblem, config: HaloConvConfig) -> int:
        """The bytes of boxes, weights, the epilogue's staging buffers, the list of units, the bias and the barriers."""
        p, c, row = problem, config, config.chunk * ITEM_BYTES
        rows, columns = self._box_sides(p)
        box = rows * columns * row
        place = round_up(box, ALIGNMENT)
        taken = c.input_stages * 2 * c.group_units * place
        taken += round_up(c.weight_stages * c.stage_taps * c.tile_n * row, ALIGNMENT)
        taken += WARPS * 16 * min(64, c.tile_n) * ITEM_BYTES
        listed = LISTED_UNITS * (2 if p.mask_of.is_of_input else 1) + THREADS + THREADS // 32
        input_barriers = 3 if p.mask_of is MaskOf.ANY_INPUT else 2
        taken += 4 * (listed + c.tile_n) + 8 * (input_barriers * c.input_stages + 2 * c.weight_stages + 1)
        return round_up(taken, ALIGNMENT)


FAMILY = HaloConv()
