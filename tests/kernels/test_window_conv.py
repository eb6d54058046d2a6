"""`window_conv` under the sanitizers: masks, sides and borders that are easy to get wrong; its heuristic config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_launches import conv, worst
from tuning_samples import H100, MEASURED_RATES

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.masked_convolution import live_share
from sparsegen.kernels.convolution.mma_conv import MmaConvConfig
from sparsegen.kernels.convolution.tile_conv import TileConvConfig
from sparsegen.kernels.convolution.unit_lists import SEGMENT_WORDS
from sparsegen.kernels.convolution.unit_tiles import FILLING
from sparsegen.kernels.convolution.window_conv import FAMILY, WindowConvConfig
from sparsegen.operators import Density, DType, ImageLayout, MaskOf

SMALL = WindowConvConfig(tile_m=64, tile_n=32, chunk=16, warps_m=2, warps_n=1, stages=2, resident=1)


@pytest.mark.sanitizer
@pytest.mark.parametrize("rest", ["filled", "kept"])
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("mask_of", MaskOf)
def test_empty_and_full_masks(
    mask_of: MaskOf, share: float, rest: str, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(20, 29, channels=40, mask_of=mask_of, rest=rest, epilogue="bias_residual")
    blocks = np.full((1, *p.mask_shape), bool(share))
    assert worst(p, SMALL, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("block", [8, "8x40", "8x256", "3x5"])
@pytest.mark.parametrize("mask_of", MaskOf)
def test_rows_of_more_units_than_a_word_has(
    mask_of: MaskOf, block: Any, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(8, 8 * 130 + 3, mask_of=mask_of, mask_block=block, density=0.1)
    assert worst(p, SMALL, emulator_toolchain) <= 1


@pytest.mark.sanitizer
def test_more_units_than_are_counted_or_listed_at_a_time(emulator_toolchain: EmulatorToolchain) -> None:
    """Rows of one unit take a word each; one multiprocessor has to list its units several times."""
    p = conv(8 * (SEGMENT_WORDS + 200), 3, channels=1, filters=1, filter_size=1, padding=0, rest="kept")
    assert worst(p, replace(SMALL, tile_n=16, warps_n=1), emulator_toolchain, multiprocessors=1) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("filter_size", [1, 2, 3])
def test_windows_of_fewer_steps_than_there_are_stages(
    stages: int, filter_size: int, emulator_toolchain: EmulatorToolchain
) -> None:
    """One multiprocessor computes several batch elements of several windows; taps are left out."""
    sides = {"filter_size": filter_size, "padding": filter_size // 2, "mask_block": 8, "density": 0.2}
    for mask_of in MaskOf:
        p = conv(35, 44, channels=48, mask_of=mask_of, **sides)
        config = replace(SMALL, tile_m=128, warps_m=4, stages=stages)
        assert worst(p, config, emulator_toolchain, multiprocessors=1) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(
    "sides",
    [
        {"dilation": "2x1", "padding": "2x1", "mask_block": "5x3", "stride": "1x2"},
        {"stride": "5x3", "mask_block": "2x4", "padding": "0"},  # a stride passes over rows of blocks
        {"filter_size": "7x5", "padding": "3x2", "mask_block": "16x64", "stride": 2},
    ],
)
def test_groups_strides_dilation_and_blocks_of_any_size(
    sides: dict[str, Any], dtype: DType, emulator_toolchain: EmulatorToolchain
) -> None:
    for mask_of in MaskOf:
        fields = {"channels": 15, "filters": 21, "groups": 3, "batch": 2, "density": 0.2}
        p = conv(37, 41, **fields, **sides, dtype=dtype, mask_of=mask_of)
        assert worst(p, replace(SMALL, tile_n=16), emulator_toolchain) <= 1


def test_float32_is_exact_to_float32(emulator_toolchain: EmulatorToolchain) -> None:
    """One TF32 product would lose 13 bits: the bound is that of float32."""
    p = conv(16, 16, channels=64, dtype="float32", density=1.0)
    assert worst(p, SMALL, emulator_toolchain) <= 1


@pytest.mark.parametrize("layout", ImageLayout)
def test_what_lies_outside_of_the_mask_counts_as_zero_in_other_families(
    layout: ImageLayout, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(20, 29, mask_of=MaskOf.ANY_INPUT, mask_block="5x8", layout=layout, density=0.3)
    small = MmaConvConfig(tile_m=64, tile_n=32, step=16, warps_m=2, warps_n=1, stages=2, resident=1)
    assert worst(p, small, emulator_toolchain) <= 1
    assert worst(p, TileConvConfig(tile_n=32, step=8), emulator_toolchain) <= 1


def test_large_problems_get_large_tiles() -> None:
    large = conv(512, 512, channels=128, filters=128, batch=8, mask_block=16, density=0.5)
    small = replace(large, height=64, width=64, batch=1)
    tiles = [
        found.tile_m * found.tile_n
        for found in (FAMILY.heuristic(p, p.features(p.without_pattern), H100) for p in (large, small))
    ]
    assert tiles[0] > tiles[1]


def test_it_comes_where_it_was_measured_to_be_faster() -> None:
    """In float16 an H100 took 34 µs for `halo_conv`, 67 for this and 125 for `mma_conv`; float32 is not measured."""
    for dtype in DType:
        p = conv(256, 256, channels=128, filters=128, batch=8, mask_block=16, density=0.1, dtype=dtype)
        ordered = [family.name for family in by_predicted_time(p, p.features(p.without_pattern), H100)]
        some = [name for name in ordered if name in ("halo_conv", "window_conv", "mma_conv")]
        if dtype is DType.FLOAT32:
            assert some.index("mma_conv") < some.index("window_conv")
        else:
            assert some == ["halo_conv", "window_conv", "mma_conv"]


@pytest.mark.parametrize("size", [(4, 96, 360, 640), (1, 128, 544, 960), (1, 32, 1088, 1920)], ids=str)
def test_few_live_blocks_do_not_bring_it_before_halo_conv(size: tuple[int, int, int, int]) -> None:
    """On an H100 it took 124 to 234 µs where few blocks live, and 100 to 153 with half of them by `halo_conv`."""
    batch, channels, height, width = size
    full = conv(
        height, width, channels=channels, filters=channels, dtype=DType.FLOAT16, batch=batch, mask_block=16
    )
    times = []
    for density in (1.0, 0.5, 0.2, 0.05):
        p = replace(full, density=Density(density))
        features = p.features(p.without_pattern)
        first = by_predicted_time(p, features, H100)[0]
        assert first.name == "halo_conv"
        times.append(first.predicted_us(p, features, H100))
    assert times == sorted(times, reverse=True), "fewer live blocks never take longer"


def test_zeros_are_written_between_products() -> None:
    """Zeros outside the mask of a filled result add to the time of the products; a kept one adds nothing."""
    p = replace(
        conv(360, 640, channels=96, filters=96, dtype=DType.FLOAT16, rest="filled"), density=Density(0.05)
    )
    device, config = replace(H100, rates=MEASURED_RATES), FAMILY.shapes[3]
    vectors = FAMILY.filling_us(p, config, device, 8)
    assert vectors == pytest.approx(FILLING * 0.95 * 360 * 640 * 96 * 2 / MEASURED_RATES.copy_bytes_per_us)
    assert FAMILY.filling_us(replace(p, rest="kept"), config, device, 8) == 0
    by_input = replace(p, mask_of=MaskOf.ANY_INPUT)  # what no live block reaches gets zeros too
    dead = (1 - live_share(by_input)) / 0.95
    assert FAMILY.filling_us(by_input, config, device, 8) == pytest.approx(dead * vectors)
    free = replace(
        device, rates=replace(MEASURED_RATES, copy_bytes_per_us=1e12)
    )  # stores take the issue slots
    one, eight = (FAMILY.filling_us(p, config, free, vector) for vector in (1, 8))
    assert one == pytest.approx(8 * eight) and eight > 0
