"""`mma_conv`: where it is expected to be the fastest."""

from __future__ import annotations

from typing import Any

import pytest
from conv_launches import conv
from tuning_samples import H100

from sparsegen.kernels import by_predicted_time
from sparsegen.operators import ImageLayout


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ({"layout": ImageLayout.NCHW}, "plane_conv"),
        ({"layout": ImageLayout.NCHW, "dtype": "float32"}, "plane_conv"),
        ({"dtype": "float32"}, "mma_conv"),
        ({"channels": 60}, "window_conv"),
        ({"groups": 2}, "window_conv"),
    ],
)
def test_it_is_expected_to_be_the_fastest_where_others_do_not_compute(
    changed: dict[str, Any], first: str
) -> None:
    """In 16 bits `window_conv` comes before it, where `halo_conv` does not compute (478 and 791 us on an H100), and of
    images in planes `plane_conv`, as long as no time says otherwise.
    """
    usual = {"channels": 128, "filters": 128, "batch": 8, "mask_block": 16, "density": 0.1}
    p = conv(256, 256, **{**usual, **changed})
    ordered = by_predicted_time(p, p.features(p.without_pattern), H100)
    assert next(family.name for family in ordered if family.computes(p)) == first
