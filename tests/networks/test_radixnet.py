"""The challenge's topologies: what is known of the published network holds of generated ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from sparsegen.errors import ConfigError, MatrixError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.radixnet import (
    CONFIGURATIONS,
    base_layers,
    challenge_bias,
    radixnet,
)


def test_there_are_twelve_configurations() -> None:
    assert len(CONFIGURATIONS) == 12
    assert [base_layers(neurons) for neurons in (1024, 4096, 16384, 65536)] == [6, 8, 10, 12]


@pytest.mark.parametrize("neurons", [32, 256, 1024])
def test_every_neuron_has_32_weights_both_ways(neurons: int) -> None:
    network = radixnet(neurons, 2 * base_layers(neurons) + 1, seed=3)
    for layer in network.layers:
        assert layer.shape == (neurons, neurons) and (layer.values == 1 / 16).all()
        assert (np.diff(layer.row_offsets) == 32).all()
        assert (np.bincount(layer.column_indices, minlength=neurons) == 32).all()


def test_the_first_layer_takes_two_classes_of_16() -> None:
    first = radixnet(64, 1).layers[0]
    for row in range(64):
        columns = first.column_indices[32 * row : 32 * row + 32]
        assert set(columns % 4) == {row % 4, (row + 1) % 4}


def test_bases_reach_every_neuron_from_every_input() -> None:
    reached = np.eye(256)
    for layer in radixnet(256, base_layers(256)).layers:
        reached = (layer.to_scipy() @ reached > 0).astype(float)
    assert reached.all()


def column_sets(layers: Sequence[CsrMatrix]) -> list[bytes]:
    """The rows of each column through all layers, which tell the radix neuron it stands for; in sorted order."""
    found = [b""] * layers[0].shape[1]
    for layer in layers:
        by_column = layer.transposition()
        for i, (begin, end) in enumerate(itertools.pairwise(by_column.row_offsets)):
            found[i] += by_column.column_indices[begin:end].tobytes() + b"|"
    return sorted(found)


def same_topology(one: Sequence[CsrMatrix], other: Sequence[CsrMatrix]) -> bool:
    """True if networks are equal up to each base's permutation of the neurons before it."""
    base = base_layers(one[0].shape[1])
    return len(one) == len(other) and all(
        column_sets(one[start : start + base]) == column_sets(other[start : start + base])
        for start in range(0, len(one), base)
    )


def test_seeds_differ_by_permutations_alone() -> None:
    one, other = radixnet(64, 5, seed=1), radixnet(64, 5, seed=2)
    assert any(
        (a.column_indices != b.column_indices).any() for a, b in zip(one.layers, other.layers, strict=True)
    )
    assert same_topology(one.layers, other.layers)
    swapped = (one.layers[1], one.layers[0], *one.layers[2:])
    assert not same_topology(swapped, other.layers)
    assert not same_topology(one.layers[:4], other.layers)


@pytest.mark.parametrize("neurons", [16, 24, 48, 1000])
def test_other_sizes_are_refused(neurons: int) -> None:
    with pytest.raises(ConfigError, match="neurons = "):
        radixnet(neurons, 3)


@pytest.mark.parametrize("neurons", [1024, 4096, 16384, 65536])
def test_the_challenges_configurations(neurons: int) -> None:
    """Deeper networks begin as shallower ones do, so that layers up to one of the second base speak for all depths."""
    depths = sorted(layers for width, layers in CONFIGURATIONS if width == neurons)
    assert depths == [120, 480, 1920] and all(depth >= base_layers(neurons) + 1 for depth in depths)
    count = min(3, base_layers(neurons)) if neurons > 4096 else base_layers(neurons) + 1
    deep = radixnet(neurons, count)
    assert deep.clip == 32 and set(np.concatenate(deep.biases)) == {np.float32(challenge_bias(neurons))}
    for layer in deep.layers:
        assert layer.shape == (neurons, neurons) and (layer.values == 1 / 16).all()
        assert (np.diff(layer.row_offsets) == 32).all()
        assert (np.bincount(layer.column_indices, minlength=neurons) == 32).all()
    shallow = radixnet(neurons, count - 1)
    for one, other in zip(shallow.layers, deep.layers, strict=False):
        np.testing.assert_array_equal(one.column_indices, other.column_indices)


def test_more_than_the_machine_has_memory_for_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"3 layers of 1099511627776 neurons, 32 weights each, would take"):
        radixnet(1 << 40, 3)
