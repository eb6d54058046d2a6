"""`halo_conv_weights` under the sanitizers: masks, sides and borders that are easy to get wrong; heuristics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_launches import HALO_WEIGHTS, HALO_WEIGHTS_IN_TURNS, weights, worst
from tuning_samples import A100, H100, MEASURED_RATES

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.dispatch.choice import choose
from sparsegen.kernels.convolution.halo_conv_weights import FAMILY, LISTED_UNITS, HaloConvWeightsConfig
from sparsegen.kernels.convolution.unit_lists import SEGMENT_WORDS
from sparsegen.kernels.rates import Rates
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Workload

H200_RATES = Rates(3.92e6, 51.1e6, 416e6, 764e6, 797e6, 4.16, 1980.0)  # measured


@pytest.mark.sanitizer
@pytest.mark.parametrize("live", [1, 2, 3])
def test_fewer_units_than_parts(live: int, emulator_toolchain: EmulatorToolchain) -> None:
    """Some parts have no unit, and of some one warpgroup has none."""
    p = weights(24, 24)
    blocks = np.zeros((1, *p.forward.mask_shape), bool)
    blocks.reshape(-1)[:live] = True
    assert worst(p, HALO_WEIGHTS_IN_TURNS, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("parts", [2, 7, 11])
def test_any_number_of_parts_is_added_up(parts: int, emulator_toolchain: EmulatorToolchain) -> None:
    for config in (HALO_WEIGHTS, HALO_WEIGHTS_IN_TURNS):
        assert worst(weights(40, 40, density=1.0), replace(config, parts=parts), emulator_toolchain) <= 1


@pytest.mark.sanitizer
def test_more_units_than_are_counted_or_listed_at_a_time(emulator_toolchain: EmulatorToolchain) -> None:
    least = replace(HALO_WEIGHTS, tap_rows=1, parts=1)
    tall = weights(8 * (SEGMENT_WORDS + 20), 3, channels=8, filters=8, filter_size=1, padding=0, density=0.1)
    assert worst(tall, least, emulator_toolchain) <= 1
    full = weights(8 * 20, 8 * 30, channels=8, filters=8, filter_size=1, padding=0, density=1.0)
    assert LISTED_UNITS < 20 * 30
    assert worst(full, least, emulator_toolchain) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("sides", "tap_rows"),
    [
        ({"dilation": "2x3", "padding": "2x1"}, 3),
        ({"stride": "1x2", "padding": "0"}, 2),
        ({"stride": 2, "dilation": "2x1", "padding": "3x2"}, 3),
        ({"stride": "5x3", "padding": "0", "mask_block": "16x8"}, 1),
        ({"filter_size": "5x2", "padding": "2x1", "mask_block": "16x64"}, 3),
        ({"filter_size": "7x1", "padding": "3x0"}, 4),
    ],
)
def test_strides_dilation_and_filters_of_any_size(
    sides: dict[str, Any], tap_rows: int, dtype: str, emulator_toolchain: EmulatorToolchain
) -> None:
    p = weights(37, 41, channels=72, filters=136, images=2, density=0.2, dtype=dtype, **sides)
    assert worst(p, replace(HALO_WEIGHTS, tap_rows=tap_rows), emulator_toolchain) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("tile_n", [128, 192])
def test_tiles_wider_and_narrower_than_the_channels(
    tile_n: int, emulator_toolchain: EmulatorToolchain
) -> None:
    for channels in (40, 136):
        p = weights(16, 24, channels=channels, filters=72, density=0.5)
        for config in (HALO_WEIGHTS, HALO_WEIGHTS_IN_TURNS):
            assert worst(p, replace(config, tile_n=tile_n, tap_rows=2), emulator_toolchain) <= 1


def large(**fields: Any) -> Any:
    usual = {"channels": 128, "images": 8, "mask_block": 16, "density": 0.1}
    found = {**usual, **fields}
    return weights(512, 512, **{"filters": found["channels"], **found})


@pytest.mark.parametrize(("channels", "tile"), [(64, (64, 64)), (128, (128, 64)), (256, (128, 128))])
def test_parts_fill_the_device_where_units_are_many(channels: int, tile: tuple[int, int]) -> None:
    few = large(channels=channels, density=0.001)
    for p, least in ((large(channels=channels), 0.9 * H100.multiprocessors), (few, 1)):
        config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
        assert not FAMILY.broken_constraints(p, config, H100)
        assert config.tap_rows == 3
        assert p is few or (config.tile_m, config.tile_n) == tile
        grid = FAMILY.launch(p, config, {}, H100).grid
        assert least <= grid[0] * grid[1] <= max(H100.multiprocessors, grid[0])


def test_heuristics_depend_on_no_measured_rate() -> None:
    odd = replace(H100, rates=replace(MEASURED_RATES, float16_flop_per_us=1e6, clock_mhz=1e5))
    for p in (large(), large(channels=256)):
        features = p.features(p.without_pattern)
        assert FAMILY.heuristic(p, features, odd) == FAMILY.heuristic(p, features, H100)


# Microseconds on an H200, float16, 8 images, 90 % dead: side, channels, tile_m, tile_n, stages, parts.
MEASURED = {
    (512, 128, 128, 64, 8, 22): 93.2,
    (512, 128, 128, 128, 5, 44): 97.7,
    (512, 128, 64, 128, 6, 22): 99.2,
    (512, 128, 128, 128, 5, 11): 271.2,
    (256, 64, 64, 64, 8, 44): 25.5,
    (256, 64, 128, 64, 8, 22): 32.8,
    (256, 64, 128, 128, 5, 44): 40.1,
    (128, 256, 128, 128, 5, 11): 42.6,
}


def test_expected_times_are_near_measured_ones() -> None:
    h200 = replace(H100, rates=H200_RATES)
    for (side, channels, tile_m, tile_n, stages, parts), us in MEASURED.items():
        p = replace(large(channels=channels), height=side, width=side)
        config = HaloConvWeightsConfig(tile_m, tile_n, 3, stages, parts)
        expected = FAMILY.analytic_us(p, p.features(p.without_pattern), config, h200)
        assert 0.85 * us < expected < 1.25 * us, config


@pytest.mark.parametrize(("rows", "tap_rows"), [(1, 1), (2, 2), (3, 3), (5, 3), (6, 3), (7, 4)])
def test_blocks_take_as_many_taps_of_a_column_as_fit(rows: int, tap_rows: int) -> None:
    p = large(filter_size=f"{rows}x1", padding="0")
    config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
    assert config.tap_rows == tap_rows


def test_dispatch_takes_it_on_hopper_and_for_what_it_computes() -> None:
    def chosen(p: Any, device: Any) -> str:
        matrix = p.without_pattern
        workload = Workload(p, p.fingerprint(matrix), p.features(matrix))
        return choose(workload, device, MemoryLayer([], [])).family.name

    for channels in (64, 128, 256):
        assert chosen(large(channels=channels), H100) == FAMILY.name
        assert chosen(large(channels=channels), A100) == "window_conv_weights"
    for fields in ({"dtype": "float32"}, {"groups": 2}, {"mask_block": 4}, {"channels": 60}):
        assert chosen(large(**fields), H100) == "window_conv_weights"
