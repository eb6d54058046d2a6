"""Gradients of masked convolutions by their weights on Hopper's tensor cores: taps of a column are rows of one box."""

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
    live_blocks_share,
    mask_constants,
    units_of,
)
from sparsegen.kernels.convolution.unit_lists import SEGMENT_WORDS
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.limits import shared_memory_fits, warpgroups_capable
from sparsegen.kernels.tensor_map import LARGEST_BOX_SIDE, LARGEST_STEP, Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, MaskedConv2dWeightsProblem
from sparsegen.operators.convolution.masked_conv2d import UNIT
from sparsegen.system.integers import ceil_div, round_up

ITEM_BYTES = 2
COUNTER_BYTES = 32  # bytes of a tile's counter
PIECE = 64  # channels or filters of a box, 128 bytes
ROW_BYTES = UNIT * PIECE * ITEM_BYTES  # bytes of a box's row: a unit's row of pixels
ALIGNMENT = 1024  # bytes, of boxes in shared memory
WARPGROUPS = 2  # warpgroups that multiply
THREADS = 128 * (1 + WARPGROUPS)
LISTING_WARPS = 4
LISTED_UNITS = 512  # at a time
MOST_SUMS = 192  # sums of a thread
MOST_TOGETHER = 512  # thread blocks of a launch with several parts; more than a device holds at once
PARTS = (1, 2, 3, 5, 7, 11, 14, 22, 33, 44, 66, 132)
# Fitted to 24 times of nine configs on an H200, float16, masks of 10 %: of launches that fill the device within 16 %,
# of those that fill a half or a quarter of it at most 25 % too high. Microseconds beside the products, of waiting for
# all parts (only their sum was measured), and of warpgroups that take turns; the rate over that of large dense
# products, which clocks lower; and what loading takes over what the bytes would.
START_US, MEETING_US, TURNS_US, REACHED, LOADED = 4.0, 3.0, 2.0, 1.05, 0.7


@dataclass(frozen=True)
class HaloConvWeightsConfig(Config):
    """One point of the tuning space of `HaloConvWeights`."""

    tile_m: int = tunable(
        128,
        (64, 128),
        "filters per thread block; of 64 the two consumer warpgroups share the units, not the filters",
        packs=True,
    )
    tile_n: int = tunable(128, (64, 128, 192), "channels per thread block", packs=True)
    tap_rows: int = tunable(3, (1, 2, 3, 4), "filter taps per thread block, one below the other", packs=True)
    stages: int = tunable(
        4, (2, 3, 4, 5, 6, 8), "pipeline stages in shared memory, a unit of 8 x 8 outputs each"
    )
    parts: int = tunable(
        44, PARTS, "thread blocks that share the units; their sums are added up in order", packs=True
    )


class HaloConvWeights(MaskedConvolutionWeights[HaloConvWeightsConfig]):
    """Products over the pixels of live units, by warpgroups: some taps of a column of the filter for each thread block.

    A unit of 8 × 8 outputs is a pipeline stage: a box of dy, and a box of x that begins at the column's tap. Both have
    channels innermost and pixels along the contraction. A row of 8 pixels is one period of the swizzle, so that the
    tap below reads the same box some rows further, and the taps are columns of one product. Each thread block keeps
    its sums in registers over all of its units. The parts of a tile are added up by the thread blocks that are still
    there when the last one has come, always in the same order, so that equal inputs give equal bits.
    """

    name = "halo_conv_weights"
    summary = (
        "gradient of a masked convolution by its weights, on warpgroups' tensor cores: taps are rows of boxes"
    )
    source = (
        "Ren et al., SBNet, CVPR 2018 (active blocks alone are computed); implicit GEMM: Chetlur et al., cuDNN, 2014; "
        "warps that load beside warps that multiply: NVIDIA, Hopper tuning guide"
    )
    mapped_names = ("x", "dy")
    scratch_names = ("counters", "partial_sums")

    def scope(self, problem: MaskedConv2dWeightsProblem) -> Iterator[Constraint]:
        p = problem
        yield one_batch_element(p)
        yield countable_outputs(p.forward)
        yield Constraint(p.dtype is not DType.FLOAT32, "warpgroups multiply 16-bit elements")
        yield Constraint(p.groups.count == 1, f"filters read all channels ({p.groups.count} groups)")
        yield Constraint(
            p.channels % 8 == 0 and p.filters % 8 == 0,
            f"channels ({p.channels}) and filters ({p.filters}) come 8 at a time",
        )
        yield Constraint(
            has_whole_units(p.forward),
            f"blocks of the mask ({p.mask_block}) are whole units of {UNIT} x {UNIT}",
        )
        yield Constraint(
            max(p.stride.rows, p.stride.columns) <= LARGEST_STEP,
            f"TMA steps over at most {LARGEST_STEP} pixels (strides {p.stride})",
        )

    def constraints(
        self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)
        p, c = problem, config
        yield warpgroups_capable(device)
        yield Constraint(
            c.tap_rows == 1 or p.dilation.rows % p.stride.rows == 0,
            f"taps of a column ({c.tap_rows}) read rows of one box: the stride ({p.stride.rows}) divides the dilation "
            f"({p.dilation.rows})",
        )
        yield Constraint(
            c.tap_rows <= p.filter_size.rows,
            f"thread blocks have no more taps of a column ({c.tap_rows}) than the filter ({p.filter_size.rows})",
        )
        reach = self._box_rows(p, c) * p.stride.rows
        yield Constraint(
            reach <= LARGEST_BOX_SIDE,
            f"a box reaches over at most {LARGEST_BOX_SIDE} rows of pixels ({reach})",
        )
        sums = self._sums(c)
        yield Constraint(sums <= MOST_SUMS, f"a thread keeps at most {MOST_SUMS} sums ({sums})")
        yield Constraint(
            c.tile_m != PIECE or (c.stages % WARPGROUPS == 0 and c.stages > WARPGROUPS),
            f"tiles of {PIECE} filters have an even number of stages, 4 or more ({c.stages})",
        )
        blocks = self._tiles(p, c) * c.parts
        yield Constraint(
            c.parts == 1 or blocks <= MOST_TOGETHER,
            f"at most {MOST_TOGETHER} thread blocks ({blocks}) wait for one another to add up their sums",
        )
        yield self.scratch_fits(p, c)
        yield shared_memory_fits("stages", self._shared_bytes(p, c), device)

    def is_worth_trying(
        self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig, device: Device
    ) -> bool:
        """True for tiles not twice as large as filters and channels, with at least 32 sums a thread, and for parts that
        are all resident at once. It rests on the tiles and parts timed in docs/notes/masked-convolution.md.
        """
        p, c = problem, config
        is_large = c.tile_m >= 2 * max(PIECE, p.filters) or c.tile_n >= 2 * max(PIECE, p.channels)
        blocks = self._tiles(p, c) * c.parts
        return not is_large and self._sums(c) >= 32 and (c.parts == 1 or blocks <= device.multiprocessors)

    def constants(
        self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig
    ) -> Mapping[str, Value]:
        p = problem
        return {
            **geometry_constants(p.forward),
            "whole_units": has_whole_units(p.forward),
            **mask_constants(p.forward),
            "list_units": LISTED_UNITS,
        }

    def tensor_map(
        self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig, name: str
    ) -> TensorMap:
        p = problem
        height, width, channels = (
            (p.height, p.width, p.channels) if name == "x" else (p.out_height, p.out_width, p.filters)
        )
        pixel = channels * ITEM_BYTES
        return TensorMap(
            name,
            p.dtype,
            (channels, width, height, p.images),
            (pixel, width * pixel, height * width * pixel),
            (PIECE, UNIT, self._box_rows(p, config) if name == "x" else UNIT, 1),
            Swizzle.BYTES_128,
            (1, p.stride.columns, p.stride.rows, 1) if name == "x" else (),
            l2_bytes=128,
        )

    def launch(
        self,
        problem: MaskedConv2dWeightsProblem,
        config: HaloConvWeightsConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(self._tiles(problem, config), config.parts, 1),
            block=(THREADS, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
            starts_early=True,
        )

    def heuristic(
        self, problem: MaskedConv2dWeightsProblem, features: Features, device: Device
    ) -> HaloConvWeightsConfig:
        """The tiles that should take the least time, with as many parts as fill the device once."""
        return self._by_expected_time(problem, features, device)[0]

    def alternatives(
        self, problem: MaskedConv2dWeightsProblem, features: Features, device: Device
    ) -> tuple[HaloConvWeightsConfig, ...]:
        """The other tiles."""
        return tuple(self._by_expected_time(problem, features, device)[1:5])

    def _by_expected_time(
        self, problem: MaskedConv2dWeightsProblem, features: Features, device: Device
    ) -> list[HaloConvWeightsConfig]:
        """Each tile's config, the fastest first; of equals the one that reads least for a product."""
        return self.by_time(problem, features, self._ordered(problem, device), device)

    def _ordered(
        self, problem: MaskedConv2dWeightsProblem, device: Device
    ) -> Iterator[HaloConvWeightsConfig]:
        """Configs from those that read least for a product to those that read most."""
        p, is_any = problem, False
        for tile_m, tile_n in ((128, 128), (128, 64), (64, 128), (64, 64)):
            if tile_m >= 2 * max(PIECE, p.filters) or tile_n >= 2 * max(PIECE, p.channels):
                continue
            for tap_rows in self._tap_rows(p):
                stages = (8, 6, 5, 4, 3)
                some = (HaloConvWeightsConfig(tile_m, tile_n, tap_rows, n, 1) for n in stages)
                found = next((c for c in some if self.is_valid(p, c, device)), None)
                if found is not None:
                    yield self._with_parts(p, found, device)
                    is_any = True
                    break
        if not is_any:
            yield HaloConvWeightsConfig(tile_m=128, tile_n=64, tap_rows=1, stages=2, parts=1)

    @staticmethod
    def _tap_rows(problem: MaskedConv2dWeightsProblem) -> list[int]:
        """Taps of a column for a thread block: first those with which the fewest blocks read the same pixels."""
        rows = problem.filter_size.rows
        return sorted(range(1, min(rows, 4) + 1), key=lambda taps: (ceil_div(rows, taps), taps))

    def _with_parts(
        self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig, device: Device
    ) -> HaloConvWeightsConfig:
        """Returns the config with the most parts that the device holds at once and that have a few units each."""
        units = live_blocks_share(problem.forward) * units_of(problem.forward)
        tiles, found = self._tiles(problem, config), replace(config, parts=1)
        for parts in PARTS:
            if tiles * parts <= device.multiprocessors and 4 * parts <= units:
                found = replace(config, parts=parts)
        return found

    def analytic_us(
        self,
        problem: MaskedConv2dWeightsProblem,
        features: Features,
        config: HaloConvWeightsConfig,
        device: Device,
    ) -> float:
        p, c, rates = problem, config, device.expected_rates
        units, tiles = live_blocks_share(p.forward) * units_of(p.forward), self._tiles(p, c)
        # Thread blocks beyond those that the device holds at once come in another wave.
        waves = ceil_div(tiles * c.parts, device.multiprocessors)
        idle = waves * device.multiprocessors / (tiles * c.parts)
        products = units * UNIT_OUTPUTS * tiles * c.tile_m * c.tile_n * c.tap_rows
        computing = idle * products / (REACHED * rates.tensor_products_per_us(p.dtype))
        loading = LOADED * idle * units * tiles * self._stage_bytes(p, c) / device.l2_bytes_per_us
        moving = p.cost(0).bytes / rates.copy_bytes_per_us
        beside = START_US + (TURNS_US if c.tile_m == PIECE else 0.0)
        sums = 0.0
        if self._parts_of_sums(c) > 1:
            sums = MEETING_US + 2 * idle * self.scratch(p, c)["partial_sums"] / device.l2_bytes_per_us
        return rates.launch_us + beside + max(computing, loading, moving) + sums

    @staticmethod
    def _sums(config: HaloConvWeightsConfig) -> int:
        """The sums that each thread keeps in registers."""
        return config.tile_n * config.tap_rows // 2

    @staticmethod
    def _parts_of_sums(config: HaloConvWeightsConfig) -> int:
        """The parts of a tile's sums: warpgroups that take turns have one each."""
        return config.parts * (WARPGROUPS if config.tile_m == PIECE else 1)

    @staticmethod
    def _tiles(problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig) -> int:
        p, c = problem, config
        taps = p.filter_size.columns * ceil_div(p.filter_size.rows, c.tap_rows)
        return taps * ceil_div(p.filters, c.tile_m) * ceil_div(p.channels, c.tile_n)

    def scratch(self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig) -> dict[str, int]:
        """Bytes of the counters and of the parts of whole tiles."""
        parts = self._parts_of_sums(config)
        if parts == 1:
            return {"counters": 16, "partial_sums": 16}
        tiles = self._tiles(problem, config)
        return {
            "counters": COUNTER_BYTES * tiles,
            "partial_sums": 4 * tiles * parts * config.tile_m * config.tile_n * config.tap_rows,
        }

    @staticmethod
    def _box_rows(problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig) -> int:
        """The rows of pixels that a unit's outputs read for the taps of a thread block."""
        return UNIT + (config.tap_rows - 1) * (problem.dilation.rows // problem.stride.rows)

    def _stage_bytes(self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig) -> int:
        """The bytes of a unit's boxes."""
        rows = UNIT * config.tile_m // PIECE + self._box_rows(problem, config) * config.tile_n // PIECE
        return rows * ROW_BYTES

    def _shared_bytes(self, problem: MaskedConv2dWeightsProblem, config: HaloConvWeightsConfig) -> int:
        """The bytes of all stages, of the list of units, the counts of a segment, barriers and flags."""
        stages = config.stages * self._stage_bytes(problem, config)
        taken = stages + 12 * LISTED_UNITS + 8 * SEGMENT_WORDS + 4 * LISTING_WARPS + 20 * config.stages + 4
        return round_up(taken, ALIGNMENT)


FAMILY = HaloConvWeights()
