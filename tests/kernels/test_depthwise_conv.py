"""`depthwise_conv` under the sanitizers: tiles, filters and vectors of every size; where it comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_launches import DEPTHWISE_PLANES, conv, worst
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.depthwise_conv import FAMILY, DepthwiseConvConfig
from sparsegen.operators import DType, ImageLayout, MaskOf

PLANES = {"layout": ImageLayout.NCHW}


def depthwise(height: int, width: int, channels: int, **fields: Any) -> Any:
    """A small problem with one filter for each channel."""
    return conv(
        height, width, channels=channels, filters=channels, groups=channels, **{"density": 0.4, **fields}
    )


@pytest.mark.sanitizer
@pytest.mark.parametrize("tile", [(1, 1), (8, 2), (2, 8), (4, 4)], ids=str)
@pytest.mark.parametrize(("width", "stride", "padding"), [(24, 1, 1), (28, 2, 1), (30, 1, 0), (31, 3, 2)])
def test_rows_that_begin_anywhere_in_a_vector(
    tile: tuple[int, int], width: int, stride: int, padding: int, emulator_toolchain: EmulatorToolchain
) -> None:
    """Rows of pixels begin and end within vectors, and so do blocks of the mask."""
    sides = {"stride": stride, "padding": padding, "mask_block": "5x3", "rest": "kept", "batch": 2}
    for mask_of in MaskOf:
        p = depthwise(21, width, 5, mask_of=mask_of, **sides, **PLANES)
        config = replace(DEPTHWISE_PLANES, tile_rows=tile[0], tile_columns=tile[1])
        assert worst(p, config, emulator_toolchain) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_channels_of_a_thread(lanes: int, dtype: DType, emulator_toolchain: EmulatorToolchain) -> None:
    """A block has more channels than there are, or some that are not there."""
    config = DepthwiseConvConfig(2, 2, lanes, channel_threads=8, threads=64)
    for channels in (lanes, 13 * lanes):
        p = depthwise(9, 11, channels, dtype=dtype, epilogue="bias_residual", mask_of="any_input")
        if lanes * dtype.itemsize <= 16:
            assert worst(p, config, emulator_toolchain) <= 1
        else:
            assert not FAMILY.is_valid(p, config, H100)


@pytest.mark.sanitizer
@pytest.mark.parametrize("fields", [{}, PLANES], ids=["pixels", "planes"])
@pytest.mark.parametrize(
    "sides",
    [
        {"filter_size": 5, "padding": 2, "epilogue": "bias_relu"},
        {"filter_size": "7x3", "padding": "3x1", "stride": "2x1", "epilogue": "bias_silu"},
        {"filter_size": 7, "padding": 3},
        {"filter_size": 3, "dilation": "2x3", "padding": 3, "mask_block": "16x64"},
        {"filter_size": 1, "padding": 0, "stride": 3},
    ],
    ids=str,
)
def test_filters_of_any_size(
    sides: dict[str, Any], fields: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    """Weights stay in registers, or in shared memory; where all blocks should be live, the mask still counts."""
    for density in (0.3, 1.0):
        p = depthwise(18, 20, 16, density=density, **sides, **fields)
        config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
        blocks = np.random.default_rng(1).random((1, *p.mask_shape)) < 0.5
        assert worst(p, config, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("layout", ImageLayout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_several_images(
    stride: int, dtype: DType, layout: ImageLayout, emulator_toolchain: EmulatorToolchain
) -> None:
    """Each has a mask of its own, and threads of one block compute outputs of two."""
    fields = {"stride": stride, "dtype": dtype, "layout": layout, "batch": 3, "epilogue": "bias_residual"}
    for mask_of in (MaskOf.OUTPUT, MaskOf.ANY_INPUT):
        p = depthwise(13, 19, 24, mask_of=mask_of, mask_block="3x5", **fields)
        blocks = np.random.default_rng(2).random((3, *p.mask_shape)) < [[[0.5]], [[0.0]], [[1.0]]]
        config = FAMILY.heuristic(p, p.features(p.without_pattern), H100)
        assert worst(p, config, emulator_toolchain, blocks) <= 1


@pytest.mark.parametrize("layout", ImageLayout)
def test_several_images_are_in_its_scope(layout: ImageLayout) -> None:
    """Elements of an image, planes and weights are counted with 31 bits; elements of all images are not."""
    p = depthwise(128, 128, 64, batch=3000, layout=layout)
    features = p.features(p.without_pattern)
    config = FAMILY.heuristic(p, features, H100)
    assert p.operands(0)[0].nbytes > 1 << 31 and FAMILY.suits(p, features, config, H100)
    for other in (replace(p, batch=200_000), depthwise(2, 2, 1 << 28, filter_size=3, layout=layout)):
        assert FAMILY.broken_constraints(other, config, H100)


@pytest.mark.parametrize("layout", ImageLayout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("side", "channels", "batch"), [(112, 32, 1), (14, 512, 8), (56, 256, 32)])
def test_it_comes_before_families_for_groups_of_channels(
    side: int, channels: int, batch: int, dtype: DType, layout: ImageLayout
) -> None:
    p = depthwise(side, side, channels, batch=batch, dtype=dtype, layout=layout, density=1.0)
    first = by_predicted_time(p, p.features(p.without_pattern), H100)[0]
    assert first is FAMILY
    assert not FAMILY.computes(replace(p, filters=2 * channels))
