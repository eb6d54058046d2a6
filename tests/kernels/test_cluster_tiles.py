"""Networks dealt among the blocks of a cluster: what each computes, keeps and gets from others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from contract_cases import csr

from sparsegen.backends.emulator import device
from sparsegen.kernels import family
from sparsegen.kernels.layouts.cluster_tiles import (
    COPIED,
    MOST_SENT,
    POSITION_BITS,
    SENT_COUNT,
    SENT_ROW,
    SPARE_BLOCKS,
    ClusterTiles,
    cluster_tiles,
)
from sparsegen.kernels.layouts.tile_groups import SIDE, LayerKind
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.network import Network
from sparsegen.networks.radixnet import CLIP, radixnet
from sparsegen.operators import DType, SparseNetworkProblem

WARPS, RUN = 4, 4


def problem_of(matrix: CsrMatrix, inputs: int = 40) -> SparseNetworkProblem:
    return SparseNetworkProblem(*matrix.shape, inputs, DType.FLOAT16)


def dealt(matrix: CsrMatrix, cluster: int) -> ClusterTiles:
    return cluster_tiles(problem_of(matrix), matrix, RUN, WARPS * RUN, cluster)


@pytest.mark.parametrize("cluster", [2, 4])
def test_blocks_of_the_challenges_networks_keep_their_share_and_a_few_more(cluster: int) -> None:
    layers, neurons = 12, 1024
    tiles = dealt(radixnet(neurons, layers).stacked(DType.FLOAT16), cluster)
    assert LayerKind.GENERAL not in tiles.kinds
    assert tiles.positions == neurons // cluster + SIDE * SPARE_BLOCKS
    assert tiles.kept[:, :-1].min() >= neurons // cluster and tiles.kept.max() <= tiles.positions
    copied = np.count_nonzero(tiles.places[..., :SIDE] & COPIED)
    assert 0 < copied < 2 * SIDE * cluster * layers, "only where the parts of two blocks meet"


def test_a_block_is_sent_what_it_waits_for() -> None:
    """Rows that go to other blocks, or to two, are as many as the blocks expect, layer by layer, and each is sent once
    to each of its destinations.
    """
    cluster = 4
    matrix = radixnet(1024, 6).stacked(DType.FLOAT16)
    tiles = dealt(matrix, cluster)
    for number in range(6):
        arrived = np.zeros(cluster, dtype=np.int64)
        for rank in range(cluster):
            _, first, passes, _ = tiles.layers[rank, number]
            groups = slice(first, first + passes * WARPS * RUN)
            words = tiles.places[rank, groups, :SIDE] & 0xFFFF
            sent = tiles.places[rank, groups, SIDE:]
            counts = sent >> SENT_COUNT
            assert (counts == counts[:, :1]).all(), "each word says how many there are"
            group, k = np.nonzero(np.arange(MOST_SENT) < counts)
            row, to = sent[group, k] >> SENT_ROW & SIDE - 1, sent[group, k] & COPIED - 1
            leaves = words >> POSITION_BITS != rank
            assert set(zip(group.tolist(), row.tolist(), strict=True)) == set(zip(*np.nonzero(leaves), strict=True))
            once = leaves[group, row] & (words[group, row] & COPIED == 0)
            assert (to[once] == words[group, row][once]).all() and once.any()
            twice = np.count_nonzero(words & COPIED)
            assert len(to) == np.count_nonzero(leaves) + twice
            assert len(np.unique(to)) == len(to), "no two rows go to one place"
            arrived += np.bincount(to >> POSITION_BITS, minlength=cluster)
        assert arrived.tolist() == tiles.layers[:, number, 3].tolist() and arrived.min() > 0


def test_a_layer_that_no_parts_fit_has_one_place_for_each_block() -> None:
    rng = np.random.default_rng(3)
    dense = np.where(rng.random((192, 192)) < 0.2, rng.standard_normal((192, 192)), 0).astype(np.float32)
    matrix = Network.of([csr(dense)] * 2, [np.zeros(192, np.float32)] * 2, CLIP).stacked(DType.FLOAT16)
    tiles = dealt(matrix, 4)
    assert set(tiles.kinds) == {LayerKind.GENERAL} and not (tiles.places[..., :SIDE] & COPIED).any()
    assert tiles.kept[:, 0].tolist() == [48] * 4
    assert np.array_equal(np.sort(tiles.source[tiles.source >= 0]), np.arange(matrix.nnz))


def test_wide_layers_need_a_larger_cluster_or_are_refused_in_words() -> None:
    found = family("cluster_network")
    for neurons, cluster in ((1024, 2), (4096, 2), (16384, 8)):
        problem = SparseNetworkProblem(neurons * 2, neurons + 3, 100, DType.FLOAT16)
        features = problem.features(csr(np.ones((1, 1), dtype=np.float32)))
        guess = found.heuristic(problem, features, device())
        assert not found.broken_constraints(problem, guess, device()) and guess.cluster == cluster
    wide = SparseNetworkProblem(2 * 65536, 65539, 100, DType.FLOAT16)
    broken = found.broken_constraints(wide, replace(guess, cluster=8, inputs=8), device())
    assert any("keeps 8256 neurons" in sentence for sentence in broken)


def test_layers_of_several_kinds_take_turns() -> None:
    """A random layer between two of the challenge's; the contract's networks are all of one kind."""
    made = radixnet(256, 2)
    rng = np.random.default_rng(5)
    other = csr(
        scipy.sparse.random_array((256, 256), density=0.1, rng=rng, dtype=np.float32).toarray().clip(0, 0.1)
    )
    network = Network.of([made.layers[0], other, made.layers[1]], [np.zeros(256, np.float32)] * 3, CLIP)
    kinds = dealt(network.stacked(DType.FLOAT16), 2).kinds
    assert kinds[1] is LayerKind.GENERAL and LayerKind.GENERAL not in (kinds[0], kinds[2])


def test_until_it_is_measured_layers_stream() -> None:
    problem = SparseNetworkProblem(120 * 4096, 4099, 60000, DType.FLOAT16)
    features = problem.features(csr(np.ones((1, 1), dtype=np.float32)))
    here = device()
    cluster, streamed = (
        family(name).predicted_us(problem, features, here) for name in ("cluster_network", "streamed_network")
    )
    assert streamed < cluster
