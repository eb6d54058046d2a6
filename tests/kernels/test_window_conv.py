"""`window_conv` under the sanitizers: masks, sides and borders that are easy to get wrong; its heuristic config."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conv_launches import MMA, TILE, WINDOW, conv, worst
from tuning_samples import H100, MEASURED_RATES

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.masked_convolution import live_share
from sparsegen.kernels.convolution.unit_tiles import FILLING
from sparsegen.kernels.convolution.window_conv import FAMILY
from sparsegen.operators import Density, DType, ImageLayout, MaskOf


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
        config = replace(WINDOW, tile_m=128, warps_m=4, stages=stages)
        assert worst(p, config, emulator_toolchain, multiprocessors=1) <= 1


@pytest.mark.parametrize("layout", ImageLayout)
def test_what_lies_outside_of_the_mask_counts_as_zero_in_other_families(
    layout: ImageLayout, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(20, 29, mask_of=MaskOf.ANY_INPUT, mask_block="5x8", layout=layout, density=0.3)
    assert worst(p, MMA, emulator_toolchain) <= 1
    assert worst(p, TILE, emulator_toolchain) <= 1


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
        first = next(f for f in by_predicted_time(p, features, H100) if f.computes(p))
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
