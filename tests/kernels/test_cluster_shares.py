"""Pieces of layers where most of what they read is made."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sparsegen.kernels.layouts.network_tiles import LayerTiles, layers_in_tiles
from sparsegen.kernels.layouts.tile_groups import SIDE, LayerKind
from sparsegen.kernels.network.cluster_shares import assigned_layers, share_of
from sparsegen.kernels.network.cluster_tiles import SPARE_BLOCKS, cluster_tiles
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.testing.matrices import csr

RUN = 4


def in_tiles(neurons: int, layers: int) -> list[LayerTiles]:
    matrix = radixnet(neurons, layers).stacked(DType.FLOAT16)
    return layers_in_tiles(SparseNetworkProblem(*matrix.shape, 8, DType.FLOAT16), matrix, RUN)


def keepers(layer: LayerTiles, cluster: int) -> np.ndarray:
    """blocks × cluster: who keeps each block of neurons that the layer reads, as its groups stand."""
    kept = np.zeros((len(layer.columns), cluster), dtype=bool)
    rank = np.arange(layer.groups.count) // share_of(layer.groups.count, RUN, cluster)
    kept[layer.groups.tiles, np.repeat(rank, np.diff(layer.groups.first))] = True
    return kept


def sent(layers: list[LayerTiles], cluster: int) -> list[int]:
    """Neurons that go to others, counted row by row, behind each layer but the last."""
    found = []
    for layer, following in pairwise(layers):
        kept = keepers(following, cluster)
        rank = np.arange(layer.groups.count) // share_of(layer.groups.count, RUN, cluster)
        to = kept[layer.places // SIDE]
        own = np.take_along_axis(to, np.broadcast_to(rank[:, None, None], (*to.shape[:2], 1)), axis=2)
        found.append(int(to.sum() - own.sum()))
    return found


@pytest.mark.parametrize("cluster", [2, 4])
def test_less_is_sent_and_in_the_first_base_little(cluster: int) -> None:
    layers = in_tiles(1024, 13)  # two bases of 6 layers, and one more
    before, after = (sent(x, cluster) for x in (layers, assigned_layers(layers, RUN, cluster, SPARE_BLOCKS)))
    assert sum(after[:5]) < 0.4 * sum(before[:5]), "there all rows of a group go the same way"
    assert sum(after[5:]) < sum(before[5:])


def test_every_group_is_assigned_once_and_runs_stay_whole() -> None:
    layers = in_tiles(1024, 8)
    for layer, assigned in zip(layers, assigned_layers(layers, RUN, 4, SPARE_BLOCKS), strict=True):
        assert assigned.groups.kind is layer.groups.kind is not LayerKind.GENERAL
        old, new = (np.sort(x.rows, axis=1)[:, 0] for x in (layer, assigned))
        order = np.argsort(old)[np.searchsorted(np.sort(old), new)]
        assert np.array_equal(np.sort(order), np.arange(old.size))
        assert np.array_equal(assigned.rows, layer.rows[order])
        assert np.array_equal(assigned.places, layer.places[order])
        pairs, turned = layer.groups.tiles.reshape(-1, 2), assigned.groups.tiles.reshape(-1, 2)
        assert np.array_equal(turned, pairs[order])
        if layer.groups.kind is LayerKind.CHAINS:
            runs = order.reshape(-1, RUN)
            assert np.array_equal(runs - runs[:, :1], np.broadcast_to(np.arange(RUN), runs.shape))


def ring(groups: int, step: int, rng: np.random.Generator) -> CsrMatrix:
    """A layer in chains: group g, 16 rows anywhere, reads the columns of blocks g and g + step."""
    pattern = np.zeros((SIDE * groups, SIDE * groups), dtype=np.float32)
    rows = rng.permutation(SIDE * groups).reshape(groups, SIDE)
    for group, own in enumerate(rows):
        for block in (group, (group + step) % groups):
            pattern[np.ix_(own, np.arange(SIDE) * groups + block)] = 0.1
    return csr(pattern)


@pytest.mark.parametrize("groups", [30, 32, 36, 40])
@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_runs_stay_chains_whatever_shares_there_are(groups: int, cluster: int) -> None:
    """A kernel keeps a block of the group before; so runs never begin inside another one."""
    rng = np.random.default_rng(groups)
    made = [ring(groups, step, rng) for step in (1, 2, 1, 2)]
    biases = [np.zeros(SIDE * groups, np.float32)] * len(made)
    matrix = Network.of(made, biases, CLIP).stacked(DType.FLOAT16)
    layers = layers_in_tiles(SparseNetworkProblem(*matrix.shape, 8, DType.FLOAT16), matrix, RUN)
    assert any(layer.groups.kind is LayerKind.CHAINS for layer in layers)
    for layer in assigned_layers(layers, RUN, cluster, SPARE_BLOCKS):
        if layer.groups.kind is not LayerKind.CHAINS:
            continue
        pairs = layer.groups.tiles.reshape(-1, 2)
        for i in range(1, len(pairs)):
            kept = i % RUN % 2
            assert i % RUN == 0 or pairs[i, kept] == pairs[i - 1, kept]


def test_layers_that_cannot_be_assigned_evenly_stay() -> None:
    layers = in_tiles(256, 4)  # 16 groups: four runs
    for layer, assigned in zip(layers, assigned_layers(layers, RUN, 8, SPARE_BLOCKS), strict=True):
        assert np.array_equal(assigned.rows, layer.rows)


@pytest.mark.parametrize("run", [1, 2, 4])
def test_shares_of_few_groups_are_assigned_too(run: int) -> None:
    """Those of one to eight groups, some fewer than a block of the cluster has spare blocks."""
    matrix = radixnet(256, 5).stacked(DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 8, DType.FLOAT16)
    for cluster in (2, 4, 8, 16):
        tiles = cluster_tiles(problem, matrix, run, 4 * run, cluster)
        assert np.array_equal(np.sort(tiles.source[tiles.source >= 0]), np.arange(matrix.nnz))


def test_nobody_keeps_more_than_there_is_room_for() -> None:
    matrix = radixnet(4096, 9).stacked(DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 8, DType.FLOAT16)
    for cluster in (2, 4, 8, 16):
        tiles = cluster_tiles(problem, matrix, RUN, 16, cluster)
        assert LayerKind.GENERAL not in tiles.kinds
        assert tiles.kept.max() <= tiles.positions == 4096 // cluster + SIDE * SPARE_BLOCKS
