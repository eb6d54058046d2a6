"""Families of sparse networks on devices that lack what they need, and what they share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import H100

from sparsegen.errors import ConfigError
from sparsegen.kernels import families_of, family
from sparsegen.kernels.cluster_network import resident_clusters
from sparsegen.kernels.layouts.network_family import run_for, warps_for
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation

PROBLEM = SparseNetworkProblem(120 * 1024, 1027, 60000, DType.FLOAT16)
FEATURES = Features(PROBLEM.m, PROBLEM.k, 35 * PROBLEM.m, 35.0, 0.0, 35, 1.0)


@pytest.mark.parametrize(
    ("capability", "works"),
    [
        ((9, 0), {"fused_network", "cluster_network", "streamed_network", "staged_network"}),
        ((8, 0), {"staged_network"}),
        ((7, 0), {"staged_network"}),
    ],
)
def test_without_clusters_and_tensor_cores_one_family_works(
    capability: tuple[int, int], works: set[str]
) -> None:
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
    dying = replace(PROBLEM, activation=Activation.DYING_RELU)
    for f in families_of("sparse_network"):
        for problem, other in ((PROBLEM, dying), (dying, PROBLEM)):
            config = f.heuristic(problem, FEATURES, H100)
            assert not f.broken_constraints(problem, config, H100), f.name
            broken = [c.sentence for c in f.constraints(other, config, H100) if not c.holds]
            assert bool(broken) == (problem is dying), f"{f.name}: {broken}"


def test_warps_and_runs_that_all_have_groups() -> None:
    assert [warps_for(groups) for groups in (1, 7, 8, 15, 16, 4096)] == [4, 4, 8, 8, 16, 16]
    assert [run_for(groups, 4) for groups in (0, 1, 2, 3, 4, 100)] == [1, 1, 2, 2, 4, 4]


def test_fewer_large_clusters_are_resident() -> None:
    """An H100 has 66 pairs of multiprocessors, and less than its 33 fours and 16 eights."""
    assert [resident_clusters(H100, blocks) for blocks in (2, 4, 8)] == [66, 31, 15]
