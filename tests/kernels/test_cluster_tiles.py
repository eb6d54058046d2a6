"""Networks dealt among the blocks of a cluster: what each computes, keeps and gets from others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from tuning_samples import H100

from sparsegen.backends.emulator import device
from sparsegen.kernels import families_of, family
from sparsegen.kernels.layouts.tile_groups import SIDE, LayerKind
from sparsegen.kernels.network.cluster_tiles import (
    COPIED,
    SPARE_BLOCKS,
    ClusterTiles,
    cluster_tiles,
    not_listed,
    position_bits,
)
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.testing.matrices import csr

WARPS, RUN = 4, 4


def problem_of(matrix: CsrMatrix, inputs: int = 40) -> SparseNetworkProblem:
    return SparseNetworkProblem(*matrix.shape, inputs, DType.FLOAT16)


def features(problem: SparseNetworkProblem) -> Features:
    """Features of layers like the challenge's."""
    return Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)


def dealt(matrix: CsrMatrix, cluster: int) -> ClusterTiles:
    return cluster_tiles(problem_of(matrix), matrix, RUN, WARPS * RUN, cluster)


@pytest.mark.parametrize("cluster", [2, 4])
def test_blocks_of_the_challenges_networks_keep_their_share_and_a_few_more(cluster: int) -> None:
    layers, neurons = 12, 1024
    tiles = dealt(radixnet(neurons, layers).stacked(DType.FLOAT16), cluster)
    assert LayerKind.GENERAL not in tiles.kinds
    assert tiles.positions == neurons // cluster + SIDE * SPARE_BLOCKS
    assert tiles.kept[:, :-1].min() >= neurons // cluster and tiles.kept.max() <= tiles.positions
    copied = np.count_nonzero(tiles.places & COPIED)
    assert 0 < copied < 2 * SIDE * cluster * layers, "only where the parts of two blocks meet"


@pytest.mark.parametrize("cluster", [4, 16])
def test_others_send_what_a_block_waits_for(cluster: int) -> None:
    """Rows that go elsewhere, once each, and second destinations are as many as the blocks expect, layer by layer."""
    matrix, bits = radixnet(256 * cluster, 8).stacked(DType.FLOAT16), position_bits(cluster)
    tiles = dealt(matrix, cluster)
    for number in range(8):
        arrived = np.zeros(cluster, dtype=np.int64)
        for rank in range(cluster):
            _, first, passes, _ = tiles.layers[rank, number]
            groups = slice(first, first + passes * WARPS * RUN)
            words = tiles.places[rank, groups] & 0xFFFF
            to = (words & COPIED - 1) >> bits
            arrived += np.bincount(to[to != rank], minlength=cluster)
            second = tiles.copies[rank, groups][words & COPIED != 0] >> bits
            assert rank not in second, "a block's own copy is the first"
            arrived += np.bincount(second, minlength=cluster)
        assert arrived.tolist() == tiles.layers[:, number, 3].tolist()
    assert tiles.layers[:, :, 3].max() > 0


def test_a_layer_that_no_parts_fit_has_one_place_for_each_block() -> None:
    rng = np.random.default_rng(3)
    dense = np.where(rng.random((192, 192)) < 0.2, rng.standard_normal((192, 192)), 0).astype(np.float32)
    matrix = Network.of([csr(dense)] * 2, [np.zeros(192, np.float32)] * 2, CLIP).stacked(DType.FLOAT16)
    tiles = dealt(matrix, 4)
    assert set(tiles.kinds) == {LayerKind.GENERAL} and not (tiles.places & COPIED).any()
    assert tiles.kept[:, 0].tolist() == [48] * 4
    assert np.array_equal(np.sort(tiles.source[tiles.source >= 0]), np.arange(matrix.nnz))


def test_wide_layers_need_a_larger_cluster_or_are_refused_in_words() -> None:
    found = family("cluster_network")
    for neurons, cluster in ((1024, 2), (4096, 2), (8192, 4), (16384, 8)):
        problem = SparseNetworkProblem(neurons * 2, neurons + 3, 100, DType.FLOAT16)
        heuristic = found.heuristic(problem, features(problem), device())
        assert not found.broken_constraints(problem, heuristic, device()) and heuristic.cluster == cluster
    wide = SparseNetworkProblem(2 * 65536, 65539, 100, DType.FLOAT16)
    broken = found.broken_constraints(wide, replace(heuristic, cluster=8, inputs=8), device())
    assert any("keeps 8256 neurons" in sentence for sentence in broken)


def test_clusters_of_sixteen_hold_tiles_of_40_inputs_where_devices_have_them() -> None:
    found = family("cluster_network")
    problem = SparseNetworkProblem(16384 * 2, 16384 + 3, 100, DType.FLOAT16)
    sixteen = replace(found.config_type(), cluster=16, inputs=40, first_check=0, checks=1)
    assert not found.broken_constraints(problem, sixteen, H100)
    other = replace(H100, compute_capability=(12, 0))
    for which in (H100, other, replace(H100, multiprocessors=60)):
        heuristic = found.heuristic(problem, features(problem), which)
        assert (heuristic.cluster, heuristic.inputs) == (8, 24), "faster than clusters of 16 on an H100"
    assert found.broken_constraints(problem, sixteen, other) == [
        "clusters of more than 8 blocks (16) need compute capability 9.x or 10.x"
    ]
    wide = replace(problem, m=2 * 32768, k=32768 + 3)
    assert "a block of the cluster (16) keeps 2112 neurons, at most 2032" in found.broken_constraints(
        wide, replace(sixteen, inputs=8), H100
    )


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


@pytest.mark.parametrize(
    ("neurons", "fastest"),
    [
        (1024, "fused_network"),
        (4096, "cluster_network"),
        (16384, "cluster_network"),
        (65536, "streamed_network"),
    ],
)
def test_each_width_has_its_family(neurons: int, fastest: str) -> None:
    """Widths up to 4096 were measured on an H100; 16384 when there were two other kernels, one in clusters of 16."""
    problem = SparseNetworkProblem(120 * neurons, neurons + 3, 60000, DType.FLOAT16)
    found = {
        f.name: f.predicted_us(problem, features(problem), H100)
        for f in families_of("sparse_network")
        if not f.broken_constraints(problem, f.heuristic(problem, features(problem), H100), H100)
    }
    assert min(found, key=found.__getitem__) == fastest


def test_what_goes_to_the_other_block_is_listed_once() -> None:
    """Behind the destinations of each group: its rows that go away, where they go, and then nothing."""
    matrix = radixnet(1024, 12).stacked(DType.FLOAT16)
    plain, found = (
        cluster_tiles(problem_of(matrix), matrix, RUN, WARPS * RUN, 2, is_listed)
        for is_listed in (False, True)
    )
    assert np.array_equal(found.places[..., :SIDE], plain.places), "destinations stay as they are"
    sent, bits, nothing = 0, position_bits(2), not_listed(2)
    for rank in range(2):
        own, listed = found.places[rank, :, :SIDE], found.places[rank, :, SIDE:]
        assert np.array_equal(own >> 16, listed >> 16), "every lane knows the two blocks"
        group, row = np.nonzero((own & COPIED - 1) >> bits != rank)
        is_listed = listed & nothing != nothing
        assert np.all(is_listed[:, :-1] >= is_listed[:, 1:]), "they stand first"
        at_group, place = np.nonzero(is_listed)
        entry = listed[at_group, place] & 0xFFFF
        assert np.array_equal(at_group, group) and np.array_equal(entry >> bits, row)
        assert np.array_equal(entry & nothing, own[group, row] & nothing)
        sent += group.size
    copies = np.count_nonzero(found.places[..., :SIDE] & COPIED)
    assert sent + copies == found.layers[:, :, 3].sum(), "as many as the other block waits for"
