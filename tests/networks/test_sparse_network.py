"""Networks as operators, on the emulator: results, dying inputs, exact categories with planted near-ties."""

from __future__ import annotations

import copy
import itertools
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from general_layers import general_layers

import sparsegen
from sparsegen.errors import ConfigError, MatrixError, OperandError
from sparsegen.networks.exact.exact import bound
from sparsegen.networks.model.images import stroke_images
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation


def dense(network: Network, y: Any, *, relu: bool = True) -> Any:
    y = np.asarray(y, dtype=np.float64)
    for layer, bias in zip(network.layers, network.biases, strict=True):
        y = np.clip(
            y @ layer.to_scipy().toarray().astype(np.float64).T + bias,
            0 if relu else -network.clip,
            network.clip,
        )
    return y


def test_a_radixnet_gives_values_and_active_inputs(where: dict[str, Any]) -> None:
    network = radixnet(64, 6, bias=-0.1)
    net = SparseNetwork(network, **where)
    assert net.activation is Activation.DYING_RELU
    y0 = (np.random.default_rng(0).random((50, 64)) < np.linspace(0, 0.4, 50)[:, None]).astype(np.float32)
    y, active = net(y0)
    right = dense(network, y0)
    np.testing.assert_allclose(y, right, rtol=0.02, atol=0.01)
    np.testing.assert_array_equal(active, np.flatnonzero(right.any(axis=1)))
    assert 0 < active.size < 50
    np.testing.assert_allclose(net.totals(y0), right.sum(axis=1), rtol=0.02, atol=0.2)
    said = net.explain(50)
    assert "fused_network (" in said and "6 layers" in said
    assert "tiles of 16 rows that share columns are filled to 100%" in said
    assert "  not staged_network: by predictions for a GPU another one is faster" in said


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_that_share_no_columns_go_without_tiles(where: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(1)
    layers = [
        np.where(rng.random((200, 200)) < 0.04, rng.uniform(0, 0.3, (200, 200)), 0).astype(np.float32)
        for _ in range(3)
    ]
    net = SparseNetwork(layers, bias=-0.05, clip=4.0, dtype=dtype, **where)
    y0 = (rng.random((30, 200)) < 0.3).astype(np.float32)
    y, _ = net(y0)
    np.testing.assert_allclose(y, dense(net.network, y0), rtol=0.01, atol=0.01)
    said = net.explain(30)
    assert "resident_network (" in said
    assert "  not streamed_network: it must hold: " in said
    reason = "rows share columns" if dtype == "float16" else "elements (float32) are float16"
    assert reason in said.split("not streamed_network")[1]


@pytest.mark.parametrize("activation", ["relu", "none"])
def test_rectangular_layers_and_general_weights(where: dict[str, Any], activation: str) -> None:
    rng = np.random.default_rng(1)
    layers, biases = general_layers((20, 37, 30, 5), rng)
    net = SparseNetwork(layers, bias=biases, activation=activation, clip=9.0, **where)
    y0 = rng.standard_normal((11, 20)).astype(np.float32)
    y, _ = net(y0)
    assert y.shape == (11, 5)
    right = dense(net.network, y0.astype(np.float16), relu=activation == "relu")
    np.testing.assert_allclose(y, right, rtol=0.02, atol=0.05)


def near_ties(count: int) -> tuple[Network, Any]:
    """Inputs that stay at the unstable fixed point of y ← 2 y - 0.3, or a little beside it."""
    network = radixnet(64, 24, bias=-0.3)
    inputs = np.full((count, 64), 0.3, dtype=np.float16)
    inputs += (np.arange(count) - count // 2)[:, None].astype(np.float16) * np.float16(2.0**-12)
    return network, inputs


def test_near_ties_fall_where_float64_has_them(where: dict[str, Any]) -> None:
    network, inputs = near_ties(21)
    net = SparseNetwork(network, **where)
    found = net.categories(inputs)
    right = np.flatnonzero(dense(network, inputs).any(axis=1))
    np.testing.assert_array_equal(found, right)
    assert 0 < right.size < 21
    assert 0 < net.undecided < 21, "bounds decide some and leave others open"


def test_bounds_bound(where: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    weights = [
        layer.with_values(rng.random(layer.nnz).astype(np.float32) / 9) for layer in radixnet(64, 5).layers
    ]
    network = Network.of(weights, [rng.uniform(-0.4, 0.0, 64) for _ in weights], 2.0)
    y0 = stroke_images(30, 64)
    exact = dense(network, y0)
    for side in (1, -1):
        other, _ = SparseNetwork(bound(network, DType.FLOAT16, side), **where)(y0)
        apart = side * (other.astype(np.float64) - exact)
        assert (apart >= 0).all() and apart.max() > 0


def test_categories_of_the_dtype_and_empty_ones(where: dict[str, Any]) -> None:
    net = SparseNetwork(radixnet(64, 3), **where)
    assert net.categories(np.zeros((4, 64))).size == 0
    ones = np.ones((4, 64))
    np.testing.assert_array_equal(net.categories(ones, exact=False), np.arange(4))
    np.testing.assert_array_equal(net.categories(ones), np.arange(4))


@pytest.mark.parametrize("options", [{}, {"memory": "1 MB"}])
@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.int32, np.bool_])
def test_inputs_of_any_memory_order(where: dict[str, Any], kind: type, options: dict[str, Any]) -> None:
    net = SparseNetwork(radixnet(64, 2), **where)
    y = (np.arange(5 * 64).reshape(5, 64) % 3 == 0).astype(kind)
    for same in (np.asfortranarray(y), np.repeat(y, 2, axis=1)[:, ::2], y[::-1][::-1]):
        np.testing.assert_array_equal(net(same, **options)[0], net(y, **options)[0])


def test_what_is_no_network_is_refused(where: dict[str, Any]) -> None:
    layer = np.eye(8, dtype=np.float32)
    with pytest.raises(MatrixError, match="layer 1: it takes 4 neurons, but layer 0 has 8"):
        SparseNetwork([layer, np.ones((8, 4))], **where)
    for widths in ((8, 0), (8, 8, 0), (0, 0)):
        empty = [np.zeros((after, before)) for before, after in itertools.pairwise(widths)]
        with pytest.raises(MatrixError, match=f"layer {len(empty) - 1}: the last layer has no neurons"):
            SparseNetwork(empty, **where)
    with pytest.raises(ConfigError, match="clip"):
        SparseNetwork([layer], clip=-1.0, **where)
    with pytest.raises(ConfigError, match="dying_relu is found"):
        SparseNetwork([layer], activation="dying_relu", **where)
    net = SparseNetwork([layer], **where)
    with pytest.raises(OperandError, match=r"inputs × 8 neurons.*got shape \(3, 7\)"):
        net(np.zeros((3, 7)))
    for empty in (np.zeros((0, 8)), []):
        with pytest.raises(OperandError, match="at least one input"):
            net(empty)
    given = np.zeros((3, 8))
    for bad in (1e6, np.nan):
        given[1, 5] = bad
        for options in ({}, {"memory": "1 MB"}):
            with pytest.raises(
                OperandError, match=r"y\[1, 5\] = .*: expected finite numbers that float16 holds"
            ):
                net(given, **options)
    with pytest.raises(MatrixError, match=r"layer 1: .*row 2, column 3, .*nan"):
        SparseNetwork([layer, np.where(np.arange(64).reshape(8, 8) == 19, np.nan, layer)], **where)
    with pytest.raises(ConfigError, match="clip that float16 holds"):
        net.categories(np.zeros((3, 8)))
    for options in ({}, {"memory": "1 MB"}):
        with pytest.raises(MatrixError, match="infinite in float16"):
            SparseNetwork([1e6 * layer], **where).totals(np.ones((3, 8)), **options)
    with pytest.raises(ConfigError, match="weights of at least 0"):
        SparseNetwork([-layer], clip=1.0, **where).categories(np.zeros((3, 8)))


def test_what_tune_records_runs_afterwards(where: dict[str, Any]) -> None:
    net = SparseNetwork(radixnet(64, 4), **where)
    y0 = stroke_images(9, 64)
    before = net.totals(y0)
    found = net.tune(9, "totals", trials=2, baselines=False)
    assert net.operator(9, "totals").choice.how == "exact"
    assert net.operator(9, "totals").choice.config == found.winner.variant.config
    np.testing.assert_array_equal(net.totals(y0), before)


def test_sparsegen_exports_it() -> None:
    assert sparsegen.SparseNetwork is SparseNetwork and sparsegen.Network is Network


def test_what_inputs_that_die_leave_to_compute() -> None:
    """The remaining work is, for each layer, its weights times the inputs that live before it, as float64 has them."""
    matrix = radixnet(256, 8, bias=-0.12).stacked(DType.FLOAT16)
    images = stroke_images(60, 256)
    images[7] = 0
    problem = SparseNetworkProblem(*matrix.shape, 60, DType.FLOAT16, Activation.DYING_RELU, Readout.TOTALS)
    operands = {"y": images.astype(np.float16), "clip": np.array([32], np.float32)}
    y, live = images.T.astype(np.float64), []
    for weights, bias in problem.real_layers(matrix):
        live.append(np.count_nonzero(y.any(axis=0)))
        y = np.clip(weights @ y + bias[:, None], 0, 32)
    assert 0 < live[-1] < live[0] == 59
    assert problem.computed_share(matrix, operands) == pytest.approx(np.mean(live) / 60, rel=0.05)
    always = replace(problem, activation=Activation.RELU)
    assert always.computed_share(matrix, operands) == 1.0
    none = {"y": np.zeros((60, 256), np.float16), "clip": operands["clip"]}
    assert problem.computed_share(matrix, none) == 0.0


def test_copies_and_pickles_prepare_anew(where: dict[str, Any]) -> None:
    net = SparseNetwork(radixnet(64, 3, bias=-0.1), **where)
    y0 = stroke_images(20, 64)
    y, _ = net(y0)
    live = net.categories(y0)
    for other in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net), copy.copy(net)):
        np.testing.assert_array_equal(other(y0)[0], y)
        np.testing.assert_array_equal(other.categories(y0), live)


@pytest.mark.parametrize("devices", [0, 1.5, {0}, object()])
def test_devices_that_are_no_list_are_refused(where: dict[str, Any], devices: Any) -> None:
    net = SparseNetwork(radixnet(64, 3, bias=-0.1), **where)
    with pytest.raises(ConfigError, match=r"devices = .*: write all, or each device once"):
        net.categories(stroke_images(4, 64), devices=devices)
