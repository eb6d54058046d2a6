"""Masks and sizes that masked convolutions of every family, and their gradients by the weights, may get wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conv_launches import (
    DEPTHWISE,
    DEPTHWISE_PLANES,
    HALO,
    HALO_WEIGHTS,
    HALO_WEIGHTS_IN_TURNS,
    MMA,
    PLANE,
    STRIP,
    TILE,
    WINDOW,
    WINDOW_WEIGHTS,
    conv,
    weights,
    worst,
)
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import families
from sparsegen.kernels.convolution.mma_conv import MmaConvConfig
from sparsegen.kernels.convolution.unit_lists import SEGMENT_WORDS
from sparsegen.operators import DType, ImageLayout, MaskedConv2dWeightsProblem, MaskOf

PLANES = {"layout": ImageLayout.NCHW}
FAR = {"dilation": "16x9", "padding": "20x9", "mask_block": "3x5"}  # taps pass over rows of blocks
FEW = {"channels": 3, "filters": 1, "dtype": "float32"}
EACH = {"channels": 18, "filters": 18, "groups": 18}  # a filter for each channel


def name(value: Any) -> str | None:
    """Calls a config by its family."""
    return value.declared_by if hasattr(value, "declared_by") else None


def problem(config: Any, height: int, width: int, **fields: Any) -> Any:
    """A small problem of the config's family."""
    is_gradient = families()[config.declared_by].problem_type is MaskedConv2dWeightsProblem
    return (weights if is_gradient else conv)(height, width, **fields)


@pytest.mark.sanitizer
@pytest.mark.parametrize("rest", ["filled", "kept"])
@pytest.mark.parametrize(
    ("config", "fields", "mask_of"),
    [
        (config, fields, mask_of)
        for config, fields in (
            (HALO, {"epilogue": "bias_relu"}),
            (MMA, {}),
            (MMA, PLANES),
            (WINDOW, {"channels": 40}),
            (PLANE, {"channels": 43, **PLANES}),
            (TILE, {}),
            (TILE, PLANES),
            (STRIP, FEW),
            (DEPTHWISE, EACH),
            (DEPTHWISE_PLANES, {**EACH, **PLANES}),
        )
        for mask_of in MaskOf
        if config is not STRIP or mask_of is not MaskOf.ANY_INPUT
    ],
    ids=name,
)
def test_empty_and_full_masks(
    config: Any, fields: dict[str, Any], mask_of: MaskOf, rest: str, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(20, 29, mask_of=mask_of, rest=rest, **{"epilogue": "bias_residual", **fields})
    for is_live in (False, True):
        blocks = np.full((1, *p.mask_shape), is_live)
        assert worst(p, config, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("config", [HALO_WEIGHTS, HALO_WEIGHTS_IN_TURNS, WINDOW_WEIGHTS], ids=name)
def test_gradients_by_empty_and_full_masks(config: Any, emulator_toolchain: EmulatorToolchain) -> None:
    p = weights(20, 29, images=2)
    for is_live in (False, True):
        blocks = np.full((2, *p.forward.mask_shape), is_live)
        assert worst(p, config, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", MaskOf)
@pytest.mark.parametrize("config", [HALO, MMA, WINDOW], ids=name)
def test_rows_of_more_blocks_than_a_word_has(
    config: Any, mask_of: MaskOf, emulator_toolchain: EmulatorToolchain
) -> None:
    p = conv(8, 8 * 130 + 3, mask_of=mask_of, density=0.1)
    assert p.operands(0)[2].shape == (3,)
    blocks = np.zeros((1, 1, 131), dtype=np.bool_)
    blocks[0, 0, [0, 31, 63, 127, 130]] = True  # some of which reach over the end of a word
    assert worst(p, config, emulator_toolchain, blocks) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("config", "block", "fields"),
    [
        *((PLANE, block, {"mask_of": m, **PLANES}) for block in ("8x40", "3x5") for m in MaskOf),
        *((DEPTHWISE, block, {"mask_of": m, **EACH}) for block in ("8x40", "3x5") for m in MaskOf),
        *((WINDOW, block, {"mask_of": m}) for block in ("8x40", "8x256", "3x5") for m in MaskOf),
        *((config, block, {}) for config in (HALO_WEIGHTS, WINDOW_WEIGHTS) for block in (8, "8x40", "8x256")),
    ],
    ids=name,
)
def test_rows_of_more_units_than_a_word_has(
    config: Any, block: Any, fields: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    """Blocks of one unit, of five, which lie across the ends of words, and as wide as a word."""
    p = problem(config, 8, 8 * 130 + 3, mask_block=block, density=0.3, **fields)
    assert worst(p, config, emulator_toolchain) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (replace(MMA, tile_n=16, warps_n=1), {"rest": "kept"}),
        (replace(WINDOW, tile_n=16, warps_n=1), {"rest": "kept"}),
        (replace(PLANE, tile_n=16, warps_n=1), {"rest": "kept", **PLANES}),
        (replace(WINDOW_WEIGHTS, taps=1, parts=1), {}),
    ],
    ids=name,
)
def test_more_units_than_are_counted_or_listed_at_a_time(
    config: Any, fields: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    """Rows of one unit take a word each; one multiprocessor has to list its units several times."""
    one = {"channels": 1, "filters": 1, "filter_size": 1, "padding": 0}
    p = problem(config, 8 * (SEGMENT_WORDS + 200), 3, **one, **fields)
    assert worst(p, config, emulator_toolchain, multiprocessors=1) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("config", "fields", "sides", "mask_of"),
    [
        (config, fields, sides, list(MaskOf)[(i + j) % 3])
        for i, (config, fields) in enumerate(
            (
                (replace(MMA, tile_n=16), {"dtype": DType.FLOAT16, "rest": "kept"}),
                (replace(MMA, tile_n=16), {"dtype": DType.FLOAT32, "rest": "kept", **PLANES}),
                (replace(MMA, tile_n=16), {"dtype": DType.BFLOAT16, "rest": "filled", **PLANES}),
                *((replace(WINDOW, tile_n=16), {"dtype": dtype}) for dtype in DType),
                *((replace(PLANE, tile_n=16), {"dtype": dtype, **PLANES}) for dtype in DType),
                *((replace(WINDOW_WEIGHTS, tile_m=16, warps_m=1, warps_k=2), {"dtype": t}) for t in DType),
            )
        )
        for j, sides in enumerate(
            (
                {"dilation": "2x1", "padding": "2x1", "mask_block": "5x3", "stride": "1x2"},
                {"stride": "5x3", "mask_block": "2x4", "padding": "0"},  # a stride passes over rows of blocks
                {"filter_size": "7x3", "padding": "3x1", "mask_block": "16x64", "stride": 2},
                *([FAR] if isinstance(config, MmaConvConfig) else []),  # no window of these fits
            )
        )
    ],
    ids=name,
)
def test_groups_strides_dilation_and_blocks_of_any_size(
    config: Any,
    fields: dict[str, Any],
    sides: dict[str, Any],
    mask_of: MaskOf,
    emulator_toolchain: EmulatorToolchain,
) -> None:
    some = {"channels": 15, "filters": 21, "groups": 3, "density": 0.2, **fields, **sides}
    gradient = config.declared_by == "window_conv_weights"
    more = {"images": 2} if gradient else {"batch": 2, "mask_of": mask_of}
    assert worst(problem(config, 37, 41, **some, **more), config, emulator_toolchain) <= 1


@pytest.mark.parametrize(
    ("config", "fields"),
    [(MMA, {}), (WINDOW, {}), (PLANE, PLANES), (replace(WINDOW_WEIGHTS, tile_n=32, warps_k=2), {})],
    ids=name,
)
def test_float32_is_exact_to_float32(
    config: Any, fields: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    """One TF32 product would lose 13 bits: the bound is that of float32."""
    p = problem(config, 16, 16, channels=64, dtype="float32", density=1.0, **fields)
    assert worst(p, config, emulator_toolchain) <= 1


@pytest.mark.parametrize(
    ("family", "fields"), [("mma_conv", {}), ("window_conv", {}), ("plane_conv", PLANES)], ids=str
)
def test_large_problems_get_large_tiles(family: str, fields: dict[str, Any]) -> None:
    large = conv(512, 512, channels=128, filters=128, batch=8, mask_block=16, density=0.5, **fields)
    small = replace(large, height=64, width=64, batch=1)
    heuristic = families()[family].heuristic
    most, least = (heuristic(p, p.features(p.without_pattern), H100) for p in (large, small))
    assert most.tile_m * most.tile_n > least.tile_m * least.tile_n
