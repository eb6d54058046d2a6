"""`mma_conv`: masks, filters and memory orders that are easy to get wrong, and which config is the heuristic one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_launches import conv, worst
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.mma_conv import FAMILY, MmaConvConfig
from sparsegen.kernels.convolution.tile_conv import TileConvConfig
from sparsegen.kernels.convolution.unit_lists import SEGMENT_WORDS
from sparsegen.operators import DType, ImageLayout, MaskOf

SMALL = MmaConvConfig(tile_m=64, tile_n=32, step=16, warps_m=2, warps_n=1, stages=2, resident=1)


@pytest.mark.sanitizer
@pytest.mark.parametrize("rest", ["filled", "kept"])
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("mask_of", MaskOf)
def test_empty_and_full_masks(
    mask_of: MaskOf, share: float, rest: str, emulator_toolchain: EmulatorToolchain
) -> None:
    layout = ImageLayout.NCHW if rest == "filled" else ImageLayout.NHWC
    p = conv(20, 29, mask_of=mask_of, rest=rest, epilogue="bias_residual", layout=layout)
    blocks = np.full((1, *p.mask_shape), bool(share))
    assert worst(p, SMALL, emulator_toolchain, blocks) <= 1
    assert worst(p, TileConvConfig(tile_n=32, step=8), emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", MaskOf)
def test_rows_of_more_units_than_a_word_has(mask_of: MaskOf, emulator_toolchain: EmulatorToolchain) -> None:
    p = conv(8, 8 * 130 + 3, mask_of=mask_of, density=0.1)
    blocks = np.zeros((1, 1, 131), dtype=np.bool_)
    blocks[0, 0, [0, 31, 63, 127, 130]] = True  # some of which reach over the end of a word
    assert worst(p, SMALL, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
def test_more_units_than_are_counted_or_listed_at_a_time(emulator_toolchain: EmulatorToolchain) -> None:
    """Rows of one unit take a word each; one multiprocessor has to list its units several times."""
    p = conv(8 * (SEGMENT_WORDS + 200), 3, channels=1, filters=1, filter_size=1, padding=0, rest="kept")
    assert worst(p, replace(SMALL, tile_n=16, warps_n=1), emulator_toolchain, multiprocessors=1) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("dtype", "layout", "rest"),
    [
        (DType.FLOAT16, ImageLayout.NHWC, "kept"),
        (DType.FLOAT32, ImageLayout.NCHW, "kept"),
        (DType.BFLOAT16, ImageLayout.NCHW, "filled"),
    ],
)
@pytest.mark.parametrize(
    "sides",
    [
        {"dilation": "2x1", "padding": "2x1", "mask_block": "5x3", "stride": "1x2"},
        {"stride": "5x3", "mask_block": "2x4", "padding": "0"},  # a stride passes over rows of blocks
        {"dilation": "16x9", "padding": "20x9", "mask_block": "3x5"},  # and so do taps
        {"filter_size": "7x5", "padding": "3x2", "mask_block": "16x64", "stride": 2},
    ],
)
def test_groups_strides_dilation_and_blocks_of_any_size(
    sides: dict[str, Any],
    rest: str,
    dtype: DType,
    layout: ImageLayout,
    emulator_toolchain: EmulatorToolchain,
) -> None:
    for mask_of in MaskOf:
        fields = {"channels": 15, "filters": 21, "groups": 3, "batch": 2, "density": 0.2}
        p = conv(37, 41, **fields, **sides, dtype=dtype, rest=rest, layout=layout, mask_of=mask_of)
        assert worst(p, replace(SMALL, tile_n=16), emulator_toolchain) <= 1


def test_float32_is_exact_to_float32(emulator_toolchain: EmulatorToolchain) -> None:
    """One TF32 product would lose 13 bits: the bound is that of float32."""
    p = conv(16, 16, channels=64, dtype="float32", density=1.0)
    assert worst(p, SMALL, emulator_toolchain) <= 1


def test_large_problems_get_large_tiles() -> None:
    large = conv(512, 512, channels=128, filters=128, batch=8, mask_block=16, density=0.5)
    small = replace(large, height=64, width=64, batch=1)
    tiles = [
        found.tile_m * found.tile_n
        for found in (FAMILY.heuristic(p, p.features(p.without_pattern), H100) for p in (large, small))
    ]
    assert tiles[0] > tiles[1]


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ({"layout": ImageLayout.NCHW}, "mma_conv"),
        ({"dtype": "float32"}, "mma_conv"),
        ({"channels": 60}, "window_conv"),
        ({"groups": 2}, "window_conv"),
    ],
)
def test_it_is_expected_to_be_the_fastest_where_others_do_not_compute(
    changed: dict[str, Any], first: str
) -> None:
    """In 16 bits `window_conv` comes before it, where `halo_conv` does not compute (478 and 791 us on an H100)."""
    usual = {"channels": 128, "filters": 128, "batch": 8, "mask_block": 16, "density": 0.1}
    p = conv(256, 256, **{**usual, **changed})
    ordered = by_predicted_time(p, p.features(p.without_pattern), H100)
    assert next(family.name for family in ordered if family.computes(p)) == first
