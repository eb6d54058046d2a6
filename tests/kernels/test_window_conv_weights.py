"""`window_conv_weights`: its heuristic config."""

from __future__ import annotations

from dataclasses import replace

from conv_launches import weights
from tuning_samples import H100

from sparsegen.kernels.convolution.window_conv_weights import FAMILY


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
