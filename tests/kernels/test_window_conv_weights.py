"""`window_conv_weights` under the sanitizers: masks, sides and borders that are easy to get wrong; heuristics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_launches import weights, worst
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels.convolution.unit_lists import SEGMENT_WORDS
from sparsegen.kernels.convolution.window_conv_weights import FAMILY, WindowConvWeightsConfig
from sparsegen.operators import DType

SMALL = WindowConvWeightsConfig(
    tile_m=32, tile_n=16, taps=3, warps_m=2, warps_n=1, warps_k=1, stages=2, parts=4
)


@pytest.mark.sanitizer
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_empty_and_full_masks(share: float, emulator_toolchain: EmulatorToolchain) -> None:
    p = weights(20, 29, images=2)
    blocks = np.full((2, *p.forward.mask_shape), bool(share))
    assert worst(p, SMALL, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("block", [8, "8x40", "8x256"])
def test_rows_of_more_units_than_a_word_has(block: Any, emulator_toolchain: EmulatorToolchain) -> None:
    """Blocks of one unit, of five, which lie across the ends of words, and as wide as a word."""
    p = weights(8, 8 * 130 + 3, mask_block=block, density=0.3)
    assert worst(p, SMALL, emulator_toolchain) <= 1


@pytest.mark.sanitizer
def test_more_units_than_are_counted_or_listed_at_a_time(emulator_toolchain: EmulatorToolchain) -> None:
    p = weights(8 * (SEGMENT_WORDS + 200), 3, channels=1, filters=1, filter_size=1, padding=0)
    assert worst(p, replace(SMALL, taps=1, parts=1), emulator_toolchain) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(
    "sides",
    [
        {"dilation": "2x1", "padding": "2x1", "mask_block": "5x3", "stride": "1x2"},
        {"stride": "5x3", "mask_block": "2x4", "padding": "0"},
        {"filter_size": "7x3", "padding": "3x1", "mask_block": "16x64", "stride": 2},
    ],
)
def test_groups_strides_dilation_and_blocks_of_any_size(
    sides: dict[str, Any], dtype: DType, emulator_toolchain: EmulatorToolchain
) -> None:
    p = weights(37, 41, channels=15, filters=21, groups=3, images=2, density=0.2, dtype=dtype, **sides)
    assert worst(p, replace(SMALL, tile_m=16, warps_m=1, warps_k=2), emulator_toolchain) <= 1


def test_float32_is_exact_to_float32(emulator_toolchain: EmulatorToolchain) -> None:
    """One TF32 product would lose 13 bits: the bound is that of float32."""
    p = weights(16, 16, channels=32, dtype="float32", density=1.0)
    assert worst(p, replace(SMALL, tile_n=32, warps_k=2), emulator_toolchain) <= 1


def test_parts_fill_the_device_where_units_are_many() -> None:
    large = weights(512, 512, channels=128, filters=128, images=8, mask_block=16, density=0.1)
    small = replace(large, height=32, width=32, images=1)
    for p, least in ((large, 0.75 * H100.multiprocessors), (small, 1)):
        config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
        grid = FAMILY.launch(p, config, {}, H100).grid
        assert grid[0] * grid[1] >= least
        assert config.parts <= max(1, p.density.share * 8 * 64 * 64)


def test_tiles_are_large_where_enough_units_are_live() -> None:
    """For the large one an H100 took 228 µs with 128 filters and 32 channels a tile, and 247 with half of them."""
    large = weights(512, 512, channels=128, filters=128, images=8, mask_block=16, density=0.1)
    small = replace(large, height=32, width=32, images=1)
    most, least = (FAMILY.heuristic(p, p.features(p.without_pattern), H100) for p in (large, small))
    assert most.tile_m * most.tile_n == 128 * 32 > least.tile_m * least.tile_n
