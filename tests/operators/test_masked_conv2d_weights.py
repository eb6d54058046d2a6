"""`masked_conv2d_weights`: its reference is the gradient of `masked_conv2d`'s; sizes, cost, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.errors import ConfigError
from sparsegen.operators import MaskedConv2dWeightsProblem

SIDES: list[dict[str, Any]] = [
    {},
    {"stride": "2x1", "padding": "2x0", "dilation": "1x2", "groups": 2},
    {"filter_size": "1x4", "padding": 0, "mask_block": "3x5"},
]


def problem(**fields: Any) -> MaskedConv2dWeightsProblem:
    usual = {"channels": 4, "filters": 6, "images": 3, "mask_block": 4, "density": 0.4}
    return MaskedConv2dWeightsProblem.of((11, 14), **{**usual, **fields})


@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_the_reference_is_the_gradient_of_the_convolution(sides: dict[str, Any]) -> None:
    """The convolution is linear in w: the product of dy and conv(x, w) is that of dw and w."""
    p = problem(**sides)
    rng = np.random.default_rng(3)
    given = p.random_operands(rng, 0)
    found = p.reference(p.without_pattern, given)
    assert found.exact.shape == p.result(0).shape
    forward = p.forward
    for _ in range(4):
        w = rng.standard_normal(p.result(0).shape).astype(np.float32)
        masks = given["mask"].reshape(p.images, -1)
        y = forward.reference(forward.without_pattern, {"x": given["x"], "w": w, "mask": masks}).exact
        np.testing.assert_allclose((found.exact * w).sum(), (y * given["dy"]).sum(), rtol=1e-10)
    assert (found.magnitude >= np.abs(found.exact) - 1e-12).all()
    assert found.exact.any()


def test_what_lies_outside_of_the_mask_does_not_count() -> None:
    p = problem()
    given = p.random_operands(np.random.default_rng(0), 0)
    first = p.reference(p.without_pattern, given).exact
    masks = given["mask"].reshape(p.images, -1)
    for gradient, words in zip(given["dy"], masks, strict=True):
        gradient[~p.forward.live(words)] = np.nan
    np.testing.assert_array_equal(p.reference(p.without_pattern, given).exact, first)


def test_cost_follows_the_density() -> None:
    sparse, dense = (problem(density=density).cost(0) for density in (0.1, 1.0))
    assert dense.flop == 2 * 3 * 11 * 14 * 6 * 4 * 9 and 9 < dense.flop / sparse.flop < 11
    assert sparse.bytes < dense.bytes


def test_sizes_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="filters = 6 is no multiple of groups = 4"):
        problem(groups=4)
    with pytest.raises(ConfigError, match="images = 0 is outside"):
        problem(images=0)
