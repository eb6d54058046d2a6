"""`halo_conv` and `tile_conv`: masks and sizes that are easy to get wrong, how blocks share units, heuristics."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conv_launches import HALO, conv, worst
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.halo_conv import FAMILY, KINDS, LISTED_UNITS, UNIT, HaloConvConfig
from sparsegen.kernels.convolution.tile_conv import TileConvConfig
from sparsegen.operators import Density, Given, MaskOf
from sparsegen.render import render


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", [MaskOf.INPUT, MaskOf.ANY_INPUT])
def test_a_unit_reaches_into_the_blocks_around_it(
    mask_of: MaskOf, emulator_toolchain: EmulatorToolchain
) -> None:
    """Corners too, with filters that are not square."""
    p = conv(40, 40, mask_of=mask_of, filter_size="5x3", padding="2x1", mask_block="16x8")
    blocks = np.zeros((1, 3, 5), dtype=np.bool_)
    blocks[0, 1, 2] = True
    assert worst(p, HALO, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("rest", ["filled", "kept"])
@pytest.mark.parametrize(
    "sides",
    [
        {"filter_size": 3, "padding": 1, "mask_block": "16x8"},
        {"filter_size": 4, "padding": 0, "mask_block": "8x24"},
        {"filter_size": 5, "padding": "1x2", "mask_block": 16},
        {"filter_size": 1, "padding": 0, "mask_block": 8},
    ],
)
def test_what_lies_outside_of_the_mask_counts_as_zero(
    sides: dict[str, Any], rest: str, emulator_toolchain: EmulatorToolchain
) -> None:
    """Several items of several chunks: boxes come again where zeros were written."""
    p = conv(37, 44, channels=64, mask_of=MaskOf.ANY_INPUT, batch=2, density=0.3, rest=rest, **sides)
    for chunk, stages in ((16, 3), (32, 2)):
        config = replace(HALO, chunk=chunk, group_units=2, input_stages=stages)
        assert worst(p, config, emulator_toolchain, multiprocessors=1) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("rest", ["filled", "kept"])
@pytest.mark.parametrize("mask_of", MaskOf)
def test_masks_that_were_written_earlier(
    mask_of: MaskOf, rest: str, emulator_toolchain: EmulatorToolchain
) -> None:
    """Blocks without work end before they wait, where nothing is filled."""
    for share in (0.0, 0.1, 1.0):
        p = conv(40, 44, mask_of=mask_of, rest=rest, epilogue="bias_residual", given=Given.EARLIER)
        blocks = np.random.default_rng(2).random((1, *p.mask_shape)) < share
        assert worst(p, HALO, emulator_toolchain, blocks, multiprocessors=9) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", [MaskOf.INPUT, MaskOf.ANY_INPUT])
@pytest.mark.parametrize("share", [0.0, 0.03, 0.2, 0.6, 1.0])
def test_units_are_shared_by_their_taps(
    share: float, mask_of: MaskOf, emulator_toolchain: EmulatorToolchain
) -> None:
    config = replace(HALO, unit_cost=2)
    for sides in (
        {"mask_block": 16},
        {"mask_block": "8x24", "filter_size": "5x3", "padding": "2x1"},
        {"mask_block": "24x8", "filter_size": 4, "padding": 0},
        {"mask_block": 8, "filter_size": 1, "padding": 0},
    ):
        p = conv(61, 76, mask_of=mask_of, density=0.5, rest="kept" if share < 0.5 else "filled", **sides)
        blocks = np.random.default_rng(1).random((1, *p.mask_shape)) < share
        assert worst(p, config, emulator_toolchain, blocks, multiprocessors=7) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "config",
    [
        replace(HALO, deferred=1),
        replace(HALO, group_units=2, deferred=1, lead=2),
        replace(HALO, tile_n=64, group_units=2, deferred=1, stage_taps=3, weight_stages=4),
        replace(HALO, group_units=2),
    ],
    ids=str,
)
def test_outputs_that_are_stored_beside_the_next_products(
    config: HaloConvConfig, share: float, emulator_toolchain: EmulatorToolchain
) -> None:
    """Several items of one and of more units, blocks without units."""
    for sides in (
        {"rest": "kept", "given": Given.EARLIER},
        {"rest": "filled", "epilogue": "bias_residual", "channels": 32, "filters": 128, "batch": 2},
        {"rest": "kept", "epilogue": "bias_relu", "stride": 2}
        if config.stage_taps == 1
        else {"rest": "kept"},
    ):
        p = conv(52, 44, density=0.5, **{"filters": 64, **sides})
        blocks = np.random.default_rng(3).random((p.batch, *p.mask_shape)) < share
        for multiprocessors in (2, 6):
            assert worst(p, config, emulator_toolchain, blocks, multiprocessors=multiprocessors) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", [MaskOf.INPUT, MaskOf.ANY_INPUT])
@pytest.mark.parametrize("group_units", [1, 2])
def test_so_they_are_where_taps_are_left_out(
    group_units: int, mask_of: MaskOf, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(61, 76, channels=64, mask_of=mask_of, density=0.3, rest="kept", mask_block=16)
    config = replace(HALO, group_units=group_units, deferred=1)
    for share in (0.0, 0.1, 0.5):
        blocks = np.random.default_rng(4).random((1, *p.mask_shape)) < share
        assert worst(p, config, emulator_toolchain, blocks, multiprocessors=2) <= 1


@pytest.mark.sanitizer
def test_they_are_in_rows_of_more_blocks_than_a_word_has(emulator_toolchain: EmulatorToolchain) -> None:
    p = conv(24, 8 * 130 + 3, mask_of=MaskOf.INPUT, density=0.1)
    blocks = np.zeros((1, 3, 131), dtype=np.bool_)
    blocks[0, 1, [0, 63, 127, 130]] = True
    blocks[0, 0, 64] = True
    assert worst(p, replace(HALO, unit_cost=1), emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", MaskOf)
@pytest.mark.parametrize("filters", [3, 20, 40, 33, 200])
def test_tiles_and_chunks_of_any_problem(
    filters: int, mask_of: MaskOf, emulator_toolchain: EmulatorToolchain
) -> None:
    """The last chunk and tile hang over; outputs go 16 bytes at a time, or as many as filters allow. Tiles take turns,
    so that both meet every epilogue with every number of filters or mask.
    """
    ragged = {"channels": 24, "filters": filters, "mask_of": mask_of, "density": 0.4, "batch": 2}
    wide = replace(HALO, tile_n=64, chunk=64, group_units=2, deferred=1, weight_stages=4)
    turns = cycle([HALO, wide] if (filters + list(MaskOf).index(mask_of)) % 2 else [wide, HALO])
    for (epilogue, rest), config in zip(
        (("bias_residual", "filled"), ("bias_relu", "kept"), ("none", "filled")), turns, strict=False
    ):
        p = conv(21, 27, epilogue=epilogue, rest=rest, **ragged)
        assert FAMILY.computes(p)
        assert worst(p, config, emulator_toolchain, multiprocessors=3) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "sides",
    [
        {"dilation": 2, "padding": 2},
        {"dilation": "3x1", "padding": "0x4", "filter_size": "2x5", "mask_block": "16x8"},
        {"padding": 5},
        {"stride": 3, "padding": 0},
        {"stride": 4, "padding": 3, "filter_size": 7},
        {"stride": 2, "padding": 2, "filter_size": 1},
    ],
)
def test_any_window(sides: dict[str, Any], emulator_toolchain: EmulatorToolchain) -> None:
    p = conv(67, 58, channels=40, filters=32, rest="filled", epilogue="bias", density=0.5, **sides)
    assert FAMILY.computes(p)
    for config in (HALO, replace(HALO, chunk=32, group_units=2, lead=1)):
        assert worst(p, config, emulator_toolchain, multiprocessors=2) <= 1


@pytest.mark.sanitizer
def test_groups_dilation_and_channels_of_any_number(emulator_toolchain: EmulatorToolchain) -> None:
    p = conv(
        13,
        17,
        channels=15,
        filters=21,
        groups=3,
        dilation="2x1",
        padding="2x1",
        mask_block="5x3",
        stride="1x2",
    )
    assert not FAMILY.computes(p)
    assert worst(p, TileConvConfig(tile_n=16, step=8, thread_pixels=8), emulator_toolchain) <= 1


def test_every_unit_has_a_place_however_many_there_are() -> None:
    config = HaloConvConfig(tile_n=64, group_units=1, input_stages=3)
    for side, batch in ((64, 1), (512, 8), (1024, 64)):
        p = conv(side, side, channels=64, filters=128, batch=batch)
        units = batch * (side // UNIT) ** 2
        blocks = FAMILY.launch(p, config, {}, H100).grid[0]
        tiles = 2
        assert blocks % tiles == 0
        parts = blocks // tiles
        rounds, left = divmod(units, parts * 2 * config.group_units)
        assert rounds * 2 * config.group_units + -(-left // parts) <= LISTED_UNITS


def test_every_unit_has_a_place_where_some_cost_less() -> None:
    """A block of the cheapest units alone, where all others are the dearest."""
    config = HaloConvConfig(tile_n=64, group_units=1, input_stages=3, unit_cost=3)
    for side, batch in ((64, 1), (256, 8), (512, 8), (1024, 16)):
        p = conv(side, side, channels=64, filters=128, batch=batch, mask_of=MaskOf.INPUT)
        cost = batch * (side // UNIT) ** 2 * (p.taps + config.unit_cost)
        parts = FAMILY.launch(p, config, {}, H100).grid[0] // 2
        assert -(-cost // parts) // (1 + config.unit_cost) + KINDS <= LISTED_UNITS


def test_units_are_shared_by_costs_where_many_live_under_a_mask_of_the_input() -> None:
    """An H100 took 172 µs so beside 191 by number, with half of the blocks live, and 62 beside 70 with a tenth. Of any
    input, with zeros elsewhere, it took 350 beside 328 with a tenth.
    """
    large = conv(
        256, 256, channels=128, filters=128, batch=8, mask_block=16, density=0.5, mask_of=MaskOf.INPUT
    )
    few = replace(large, height=64, width=64, batch=1)
    tenth = replace(large, density=Density(0.1))
    any_input = replace(tenth, mask_of=MaskOf.ANY_INPUT)
    for p, cost in (
        (large, 3),
        (few, 0),
        (tenth, 3),
        (any_input, 0),
        (replace(large, mask_of=MaskOf.OUTPUT), 0),
    ):
        assert FAMILY.heuristic(p, p.features(p.without_pattern), H100).unit_cost == cost


def test_weights_of_up_to_128_channels_stay_where_not_many_units_live() -> None:
    """8 images of 512², 128 channels, a tenth live: an H100 took 95.0 µs so, beside 99.4; 459 beside 441 with half."""
    tenth = conv(512, 512, channels=128, filters=128, batch=8, mask_block=16, density=0.1, rest="kept")
    wide = replace(tenth, channels=256, filters=256)
    for p, stages, deferred in (
        (tenth, 12, 0),
        (replace(tenth, density=Density(0.5)), 6, 1),
        (wide, 6, 1),
        (replace(tenth, height=64, width=64), 4, 0),
    ):
        config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
        assert (config.weight_stages, config.deferred) == (stages, deferred)


def test_units_of_any_input_go_one_at_a_time_where_few_live() -> None:
    """An H100 took 338 µs so beside 351 in pairs."""
    p = conv(
        512, 512, channels=128, filters=128, batch=8, mask_block=16, density=0.1, mask_of=MaskOf.ANY_INPUT
    )
    config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
    assert (config.group_units, config.input_stages, config.unit_cost) == (1, 3, 0)


def test_large_problems_get_large_tiles_and_the_fast_family() -> None:
    large = conv(512, 512, channels=128, filters=128, batch=8, mask_block=16, density=0.5)
    small = replace(large, height=64, width=64, batch=1)
    tiles = [
        heuristic.tile_n * heuristic.group_units
        for heuristic in (FAMILY.heuristic(p, p.features(p.without_pattern), H100) for p in (large, small))
    ]
    assert tiles[0] > tiles[1]
    first = by_predicted_time(large, large.features(large.without_pattern), H100)[0]
    assert first.name == "halo_conv"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("rest", ["kept", "filled"])
def test_nvcc_leaves_stores_of_16_bytes_whole(rest: str, tmp_path: Path) -> None:
    p = conv(64, 64, channels=128, filters=128, rest=rest)
    (tmp_path / "kernel.cu").write_text(render(FAMILY, p, HaloConvConfig()))
    command = ["nvcc", "-ptx", "-std=c++17", "-gencode=arch=compute_90a,code=compute_90a", "kernel.cu"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    stores = [
        line.split()[0] for line in (tmp_path / "kernel.ptx").read_text().splitlines() if "st.global" in line
    ]
    assert stores and set(stores) <= {"st.global.v4.b32", "st.global.v4.u32"}
