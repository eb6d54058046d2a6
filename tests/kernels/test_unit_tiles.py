"""Families whose warps multiply tiles of live units: how blocks share them, and that every problem has a config."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tuning_samples import H100

from sparsegen.kernels.convolution import mma_conv, plane_conv, window_conv
from sparsegen.kernels.convolution.masked_convolution import UNIT_OUTPUTS, filter_tiles, units_of
from sparsegen.kernels.convolution.unit_tiles import UnitTiles
from sparsegen.operators import MaskedConv2dProblem

each_family = pytest.mark.parametrize(
    "family", [mma_conv.FAMILY, plane_conv.FAMILY, window_conv.FAMILY], ids=lambda family: family.name
)


def conv(family: UnitTiles[Any], **options: Any) -> MaskedConv2dProblem:
    layout = "nchw" if family is plane_conv.FAMILY else "nhwc"
    sizes = {"channels": 64, "filters": 128, "batch": 2, "dtype": "float16", "density": 1.0, "layout": layout}
    return MaskedConv2dProblem.of((64, 96), **{**sizes, **options})


@each_family
@pytest.mark.parametrize("filters", [24, 128, 320])
def test_every_tile_of_filters_has_as_many_blocks(family: UnitTiles[Any], filters: int) -> None:
    p = conv(family, filters=filters)
    for shape in family.shapes:
        blocks = family.launch(p, shape, {}, H100).grid[0]
        tiles = filter_tiles(p, shape.tile_n)
        assert blocks % tiles == 0
        assert tiles <= blocks <= max(tiles, H100.multiprocessors * shape.resident)


@each_family
def test_rounds_hold_every_output_of_every_tile_of_filters(family: UnitTiles[Any]) -> None:
    p = conv(family, filters=320)
    for shape in family.shapes:
        rounds = family.rounds(p, shape, H100)
        blocks = family.launch(p, shape, {}, H100).grid[0]
        tiles = filter_tiles(p, shape.tile_n)
        least = units_of(p) * UNIT_OUTPUTS / shape.tile_m * tiles
        of_block = math.ceil(least / blocks)
        assert least <= rounds < max(least + tiles, (of_block + 1) * H100.multiprocessors)


@each_family
@pytest.mark.parametrize(
    "options",
    [
        {"channels": 1, "filters": 1},
        {"channels": 3, "filters": 5, "dtype": "float32"},
        {"channels": 512, "filters": 512, "dtype": "float32", "filter_size": "7x7", "padding": 3},
        {"channels": 64, "filters": 64, "groups": 64},
        {"mask_of": "any_input", "stride": 2},
    ],
    ids=str,
)
def test_every_problem_has_a_valid_config(family: UnitTiles[Any], options: dict[str, Any]) -> None:
    p = conv(family, **options)
    features = p.features(p.without_pattern)
    for found in (family.heuristic(p, features, H100), *family.alternatives(p, features, H100)):
        assert family.broken_constraints(p, found, H100) == []
        assert found.tile_n < 2 * max(16, p.filters // p.groups.count)
