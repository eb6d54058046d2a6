"""`strip_conv`: masks, edges and blocks that are easy to get wrong, and where it is expected to be the fastest."""

from __future__ import annotations

from typing import Any

import pytest
from conv_launches import STRIP, conv, worst
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.strip_conv import FAMILY
from sparsegen.operators import MaskOf


def few(height: int, width: int, **fields: Any) -> Any:
    return conv(height, width, **{"channels": 3, "filters": 1, "dtype": "float32", **fields})


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_of", [MaskOf.OUTPUT, MaskOf.INPUT])
@pytest.mark.parametrize(
    "fields",
    [
        {"filters": 5, "channels": 7, "filter_size": "5x3", "padding": "4x0", "mask_block": "5x7"},
        {"filters": 3, "dtype": "bfloat16", "filter_size": "2x7", "padding": "0x3", "rest": "kept"},
        {"batch": 3, "mask_block": "24x3", "rest": "kept", "epilogue": "bias_silu"},
    ],
)
def test_images_and_blocks_that_tiles_do_not_divide(
    fields: dict[str, Any], mask_of: MaskOf, emulator_toolchain: EmulatorToolchain
) -> None:
    p = few(37, 75, mask_of=mask_of, density=0.2, **fields)
    assert worst(p, STRIP, emulator_toolchain) <= 1


def test_it_is_expected_to_be_the_fastest_for_few_channels_and_filters() -> None:
    report = few(512, 512, batch=256, density=0.3)
    ordered = by_predicted_time(report, report.features(report.without_pattern), H100)
    assert next(family for family in ordered if family.computes(report)) is FAMILY
    assert not FAMILY.computes(few(512, 512, channels=64, filters=64))
