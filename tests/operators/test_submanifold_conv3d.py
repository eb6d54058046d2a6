"""`submanifold_conv3d` and its gradient by the weights: what is right, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import sparsegen
from sparsegen import masks
from sparsegen.errors import ConfigError, OperandError
from sparsegen.operators import (
    ConvEpilogue,
    FilterVolume,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.settings import Settings
from sparsegen.system.numpy_types import Array

SIDE, CHANNELS, FILTERS = 5, 3, 4


@pytest.fixture(autouse=True)
def _own_cache(emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv("SPARSEGEN_DB", str(emulator_settings.cache / "none.db"))


def scene(rng: np.random.Generator) -> tuple[Array, Array]:
    """Points of two scenes, and these as full grids: the features, and whether there is a point."""
    is_point = rng.random((2, SIDE, SIDE, SIDE)) < 0.4
    return np.argwhere(is_point).astype(np.int32), is_point


@pytest.mark.parametrize("size", [(3, 3, 3), (1, 3, 5)], ids=str)
def test_the_reference_is_the_dense_convolution_at_the_points(size: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    points, is_point = scene(rng)
    problem = SubmanifoldConv3dProblem(len(points), CHANNELS, FILTERS, filter_volume=FilterVolume(*size))
    given = problem.random_operands(rng, 0) | {"kernel_map": masks.kernel_map(points, size)}
    full = np.zeros((2, *(SIDE + 2 * (side // 2) for side in size), CHANNELS))
    margins = tuple(slice(side // 2, side // 2 + SIDE) for side in size)
    full[(slice(None), *margins)][is_point] = given["x"]
    exact = np.zeros((2, SIDE, SIDE, SIDE, FILTERS))
    for z, y, x in np.ndindex(*size):
        exact += full[:, z : z + SIDE, y : y + SIDE, x : x + SIDE] @ given["w"][:, z, y, x].T
    found = problem.reference(problem.without_pattern, given)
    np.testing.assert_allclose(found.exact, exact[is_point], rtol=1e-6, atol=1e-6)


def test_the_gradients_are_those_of_the_convolution() -> None:
    """Both are linear: <dy, conv(x, w)> = <dx, x> = <dw, w>, dx by the opposite taps."""
    rng = np.random.default_rng(1)
    points, _ = scene(rng)
    forward = SubmanifoldConv3dProblem(len(points), CHANNELS, FILTERS)
    backward = SubmanifoldConv3dProblem(len(points), FILTERS, CHANNELS)
    weights = SubmanifoldConv3dWeightsProblem(len(points), CHANNELS, FILTERS)
    given = forward.random_operands(rng, 0) | {"kernel_map": masks.kernel_map(points)}
    dy = rng.standard_normal((len(points), FILTERS)).astype(np.float32)
    product = float((forward.reference(forward.without_pattern, given).exact * dy).sum())
    opposite = np.ascontiguousarray(given["w"][:, ::-1, ::-1, ::-1].transpose(4, 1, 2, 3, 0))
    dx = backward.reference(backward.without_pattern, given | {"x": dy, "w": opposite}).exact
    dw = weights.reference(weights.without_pattern, given | {"dy": dy}).exact
    assert float((dx * given["x"]).sum()) == pytest.approx(product)
    assert float((dw * given["w"]).sum()) == pytest.approx(product)


def test_operators_compute_it_and_refuse_what_does_not_fit() -> None:
    rng = np.random.default_rng(2)
    points, _ = scene(rng)
    kernel_map = masks.kernel_map(points)
    conv = sparsegen.prepare(
        operator="submanifold_conv3d",
        points=len(points),
        channels=CHANNELS,
        filters=FILTERS,
        epilogue="bias_relu",
        device="emulator",
    )
    given = conv.problem.random_operands(rng, 0) | {"kernel_map": kernel_map}
    y = conv(given["x"], given["w"], kernel_map, bias=given["bias"])
    exact = conv.problem.reference(conv.problem.without_pattern, given).exact
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)
    with pytest.raises(OperandError, match="epilogue bias_relu takes a bias"):
        conv(given["x"], given["w"], kernel_map)
    with pytest.raises(OperandError, match="kernel_map: expected"):
        conv(given["x"], given["w"], kernel_map[1:], bias=given["bias"])
    with pytest.raises(OperandError, match="kernel_map: expected"):
        conv(given["x"], given["w"], kernel_map.astype(np.int64), bias=given["bias"])
    assert conv.problem.epilogue is ConvEpilogue.BIAS_RELU


@pytest.mark.parametrize("size", ["2x3x3", "3x3", "9", "0", "", True, 3.5])
def test_filters_have_odd_sides(size: object) -> None:
    with pytest.raises(ConfigError, match=r'no filter size: write "3x3x3"'):
        SubmanifoldConv3dProblem.of((3, 4), filters=5, filter_volume=size)


def test_filter_sizes_are_written_in_one_way() -> None:
    for written, sides in (("3x1x5", (3, 1, 5)), (3, (3, 3, 3)), ("5", (5, 5, 5)), ((1, 1, 3), (1, 1, 3))):
        size = FilterVolume.parse(written)
        assert size.sides == sides and FilterVolume.parse(str(size)) == size
    assert SubmanifoldConv3dProblem(10, 4, 4).live_taps == pytest.approx(81)


@pytest.mark.parametrize("operator", ["submanifold_conv3d", "submanifold_conv3d_weights"])
def test_rows_that_no_map_names_may_be_left_out(operator: str) -> None:
    """Kernels read none of them: first calls leave numbers there that are none."""
    rng = np.random.default_rng(3)
    points, _ = scene(rng)
    count, places = len(points), len(points) + 7
    padded = np.concatenate([points, np.full((7, 4), -1, np.int32)])
    sizes = {"points": places, "channels": CHANNELS, "filters": FILTERS}
    conv = sparsegen.prepare(operator=operator, device="emulator", **sizes)
    given = conv.problem.random_operands(rng, 0) | {"kernel_map": masks.kernel_map(padded)}
    exact = conv.problem.reference(conv.problem.without_pattern, given).exact
    rows = [name for name in ("x", "dy") if name in given]
    for name in rows:
        given[name][count:] = np.nan
    for kept in (places, count):
        arrays = [array[:kept] if name in rows else array for name, array in given.items()]
        np.testing.assert_allclose(conv(*arrays), exact, rtol=1e-4, atol=1e-4)
    with pytest.raises(OperandError, match=r"x: expected shape \(.*, 3\), got \(.*, 2\)"):
        conv(given["x"][:, :2].copy(), *list(given.values())[1:])
    with pytest.raises(OperandError, match="x: expected shape"):
        conv(np.concatenate([given["x"], given["x"]]), *list(given.values())[1:])
