"""Levels that tell whether an input lives: what is above or below them goes as they say, and they are not far apart."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparsegen.networks.exact.decisions import Levels
from sparsegen.networks.exact.exact import inferred
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators.sparse_network import Activation

WIDTHS = (20, 37, 30, 33, 9, 24, 31, 5)


def monotone(seed: int, *, highest_bias: float, clip: float = 6.0) -> Network:
    """Layers of several widths, with rows of sums about 2, a row without weights and one with a lone weight."""
    rng = np.random.default_rng(seed)
    layers = []
    for before, after in itertools.pairwise(WIDTHS):
        layer = rng.random((after, before)) * (rng.random((after, before)) < 0.5)
        layer *= rng.uniform(1.6, 2.4, (after, 1)) / np.maximum(layer.sum(axis=1, keepdims=True), 0.1)
        layers.append(layer)
    biases = [rng.uniform(-0.4, highest_bias, after) for after in WIDTHS[1:]]
    return Network.of(layers, biases, clip)


def behind(network: Network, layer: int) -> Network:
    """The layers that follow one, the first being 0."""
    return Network(network.layers[layer + 1 :], network.biases[layer + 1 :], network.clip)


@pytest.mark.parametrize(
    ("activation", "highest_bias"), [(Activation.DYING_RELU, -0.1), (Activation.RELU, 0.05)]
)
def test_inputs_beyond_a_level_go_as_it_says(activation: Activation, highest_bias: float) -> None:
    told = {"lives": 0, "dies": 0}
    for seed in range(20):
        network, rng = monotone(seed, highest_bias=highest_bias), np.random.default_rng(seed)
        levels = Levels.of(network, activation)
        for layer in range(len(network.layers) - 1):
            rest, width = behind(network, layer), network.layers[layer].shape[0]
            enough, little = levels.enough[layer], levels.little[layer]
            if enough <= network.clip:
                more = rng.uniform(0, 1e-9, (3, width)) * [[0], [1], [1e9]]
                y = np.minimum(enough + more, network.clip)
                assert inferred(rest, activation, y).any(axis=1).all()
                told["lives"] += 1
            if little >= 0:
                y = np.maximum(little - rng.uniform(0, 1e-9, (3, width)) * [[0], [1], [1e9]], 0)
                assert not inferred(rest, activation, np.minimum(y, network.clip)).any()
                told["dies"] += 1
    assert told["lives"] > 20
    assert told["dies"] > 20 or activation is Activation.RELU


def test_levels_of_the_challenge_meet_at_its_fixed_point() -> None:
    network = radixnet(64, 60, bias=-0.3)
    levels = Levels.of(network, Activation.DYING_RELU)
    fixed = -float(network.biases[0][0])
    np.testing.assert_allclose(levels.enough[:5], fixed, rtol=1e-12)
    np.testing.assert_allclose(levels.little[:5], fixed, rtol=1e-12)
    assert (levels.little[:-1] < levels.enough[:-1]).all()
    assert levels.enough[-1] == np.inf and levels.little[-1] == 0


def test_nothing_is_enough_where_rows_lose() -> None:
    """Weights that sum to 1/2 let every neuron shrink; without weights a neuron lives where its bias is above 0."""
    shrinking = Network.of([np.full((4, 4), 0.125)] * 12, -0.5, 3.0)
    levels = Levels.of(shrinking, Activation.DYING_RELU)
    assert levels.enough[0] == np.inf and levels.little[0] == np.inf
    born = Network.of([np.zeros((4, 4)), np.zeros((4, 4))], 0.5, 3.0)
    levels = Levels.of(born, Activation.RELU)
    assert levels.enough[0] == 0 and levels.little[0] == -1
