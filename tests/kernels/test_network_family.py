"""Families of sparse networks on devices that lack what they need, and what they share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import H100

from sparsegen.errors import ConfigError
from sparsegen.kernels import families_of, family
from sparsegen.kernels.network.cluster_network import resident_clusters
from sparsegen.kernels.network.network_family import run_for, warps_for
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation

PROBLEM = SparseNetworkProblem(120 * 1024, 1027, 60000, DType.FLOAT16)
FEATURES = Features(PROBLEM.m, PROBLEM.k, 35 * PROBLEM.m, 35.0, 0.0, 35, 1.0)


@pytest.mark.parametrize(
    ("capability", "works"),
    [
        (
            (9, 0),
            {"fused_network", "cluster_network", "streamed_network", "resident_network", "staged_network"},
        ),
        ((8, 0), {"resident_network", "staged_network"}),
        ((7, 0), {"staged_network"}),
    ],
)
def test_without_clusters_and_tensor_cores_others_work(capability: tuple[int, int], works: set[str]) -> None:
    device = replace(H100, compute_capability=capability)
    valid = {
        f.name
        for f in families_of("sparse_network")
        if not f.broken_constraints(PROBLEM, f.heuristic(PROBLEM, FEATURES, device), device)
    }
    assert valid == works


@pytest.mark.parametrize("name", ["fused_network", "cluster_network", "streamed_network"])
def test_asked_for_by_name_they_say_what_lacks(name: str) -> None:
    old, chosen = replace(H100, compute_capability=(8, 0)), family(name)
    with pytest.raises(ConfigError, match=r"compute capability 9\.0"):
        chosen.require_valid(PROBLEM, chosen.heuristic(PROBLEM, FEATURES, H100), old)


def test_inputs_are_dropped_where_they_die_alone() -> None:
    whole = replace(PROBLEM, n=56 * 132)  # nothing is left for few blocks, and no tile is in a ring
    dying = replace(whole, activation=Activation.DYING_RELU)
    for f in (f for f in families_of("sparse_network") if hasattr(f.config_type(), "first_check")):
        for problem, other in ((whole, dying), (dying, whole)):
            config = f.heuristic(problem, FEATURES, H100)
            assert not f.broken_constraints(problem, config, H100), f.name
            broken = [c.sentence for c in f.constraints(other, config, H100) if not c.holds]
            assert bool(broken) == (problem is dying), f"{f.name}: {broken}"


def test_warps_and_runs_that_all_have_groups() -> None:
    assert [warps_for(groups) for groups in (1, 7, 8, 15, 16, 4096)] == [4, 4, 8, 8, 16, 16]
    assert [run_for(groups, 4) for groups in (0, 1, 2, 3, 4, 100)] == [1, 1, 2, 2, 4, 4]


def test_fewer_large_clusters_are_resident() -> None:
    """An H100 has 66 pairs of multiprocessors, and less than its 33 fours, 16 eights and 8 sixteens."""
    assert [resident_clusters(H100, blocks) for blocks in (2, 4, 8, 16)] == [66, 30, 15, 7]


def stack(neurons: int, inputs: int) -> tuple[SparseNetworkProblem, Features]:
    """Makes 120 of the challenge's layers, whose inputs all live."""
    problem = replace(PROBLEM, m=120 * neurons, k=neurons + 3, n=inputs)
    return problem, replace(FEATURES, m=problem.m, k=problem.k, nnz=35 * problem.m)


@pytest.mark.parametrize(
    ("inputs", "rest"),
    [
        (8 * 40 * 132 + 6 * 132, 16),  # 8 whole tiles of 40 for each of 132 multiprocessors, and 6 inputs
        (8 * 40 * 132, 0),
        (8 * 40 * 132 + 16 * 132, 0),
        (100, 0),
    ],
)
def test_few_blocks_take_the_few_inputs_behind_whole_tiles(inputs: int, rest: int) -> None:
    problem, features = stack(1040, inputs)
    fused = family("fused_network")
    assert fused.heuristic(problem, features, H100).rest == rest
    dying = replace(problem, activation=Activation.DYING_RELU)
    assert fused.heuristic(dying, features, H100).rest == 0


@pytest.mark.parametrize(
    ("neurons", "inputs", "fill", "tile"),
    [
        (1024, 60000, 1.0, 96),
        (1024, 132 * 56, 1.0, 56),  # each multiprocessor has one whole tile
        (1024, 60000, 0.5, 56),  # groups of more than two tiles
        (512, 60000, 1.0, 56),  # warps with less than four groups
        (1040, 60000, 1.0, 40),  # one group more than warps have, and than fits
    ],
)
def test_a_ring_is_for_many_inputs_that_live(neurons: int, inputs: int, fill: float, tile: int) -> None:
    problem, features = stack(neurons, inputs)
    fused = family("fused_network")
    config = fused.heuristic(problem, replace(features, block_fill=fill), H100)
    assert config.inputs == tile
    assert not fused.broken_constraints(problem, config, H100)
    dying = replace(problem, activation=Activation.DYING_RELU)
    assert fused.heuristic(dying, features, H100).inputs == min(tile, 56)


def test_clusters_of_two_list_what_they_send() -> None:
    cluster = family("cluster_network")
    for neurons, sending in ((1024, "listed"), (4096, "listed"), (8192, "sought"), (16384, "sought")):
        problem, features = stack(neurons, 60000)
        for activation in (Activation.RELU, Activation.DYING_RELU):
            config = cluster.heuristic(replace(problem, activation=activation), features, H100)
            assert config.sending == sending, neurons


@pytest.mark.parametrize(
    ("name", "neurons", "inputs", "ms"),
    [
        ("fused_network", 1024, 60000, 2.142),
        ("cluster_network", 4096, 60000, 20.45),
        ("streamed_network", 16384, 60000, 201.1),
        ("streamed_network", 65536, 8448, 97.8),
    ],
)
def test_expected_times_are_near_those_of_an_h200(name: str, neurons: int, inputs: int, ms: float) -> None:
    """It has the multiprocessors and clocks of an H100, and memory that copies 3.9 TB/s."""
    rates = replace(H100.expected_rates, copy_bytes_per_us=3.9e6)
    device, chosen = replace(H100, rates=rates), family(name)
    problem, features = stack(neurons, inputs)
    us = chosen.analytic_us(problem, features, chosen.heuristic(problem, features, device), device)
    assert us == pytest.approx(1000 * ms, rel=0.15)
