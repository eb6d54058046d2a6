"""`plane_conv` under the sanitizers: rows of every vector, channels that no vector divides; where it comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conv_launches import PLANE, conv, worst
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.convolution.plane_conv import FAMILY
from sparsegen.operators import DType, ImageLayout, MaskOf


def planes(height: int, width: int, **fields: Any) -> Any:
    """A small problem whose images lie in planes."""
    return conv(height, width, layout=ImageLayout.NCHW, density=0.4, **fields)


@pytest.mark.sanitizer
@pytest.mark.parametrize("padding", [0, 1, 3])
@pytest.mark.parametrize(("width", "vector"), [(24, 8), (28, 4), (30, 2), (31, 1)])
def test_rows_that_begin_anywhere_in_a_vector(
    width: int, vector: int, padding: int, emulator_toolchain: EmulatorToolchain
) -> None:
    """Windows begin within vectors and end within others; the mask's blocks end within vectors too."""
    p = planes(20, width, channels=21, padding=padding, mask_of=MaskOf.ANY_INPUT, mask_block="5x3", batch=2)
    config = replace(PLANE, tile_m=128, warps_m=4, chunk=32)
    assert FAMILY.constants(p, config)["vector_x"] == vector
    assert worst(p, config, emulator_toolchain) <= 1


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_strides_and_groups_of_images_with_wide_vectors(
    stride: int, dtype: DType, emulator_toolchain: EmulatorToolchain
) -> None:
    p = planes(
        24, 40, channels=36, groups=2, stride=stride, dtype=dtype, epilogue="bias_residual", dilation="1x2"
    )
    assert worst(p, replace(PLANE, tile_n=16, warps_n=1), emulator_toolchain, multiprocessors=1) <= 1


def test_it_comes_before_loads_of_single_elements_for_each_tap() -> None:
    """`mma_conv` took 91 and 840 µs on an H200."""
    few = planes(54, 49, channels=176, filters=24, mask_of="any_input", mask_block=128)
    odd = planes(144, 218, channels=255, filters=12, batch=4, mask_block=16, epilogue="bias")
    for p in (few, odd):
        first = next(f for f in by_predicted_time(p, p.features(p.without_pattern), H100) if f.computes(p))
        assert first is FAMILY
    assert not FAMILY.computes(replace(few, layout=ImageLayout.NHWC))
