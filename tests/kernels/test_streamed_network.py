"""`streamed_network` whose blocks share each layer, beside one whose blocks share the inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_samples import check_network, mixed
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.settings import Settings

FAMILY = family("streamed_network")


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("config", "activation", "readout", "inputs"),
    [
        ({"inputs": 16, "first_check": 1, "checks": 3}, Activation.DYING_RELU, Readout.NEURONS, 83),
        ({"inputs": 32, "first_check": 2, "checks": 2}, Activation.DYING_RELU, Readout.TOTALS, 150),
        ({"inputs": 64, "first_check": 1, "checks": 6}, Activation.DYING_RELU, Readout.TOTALS, 131),
        ({"inputs": 64, "first_check": 0, "checks": 1}, Activation.RELU, Readout.NEURONS, 70),
        (
            {"inputs": 16, "sets": 2, "set_tiles": 1, "first_check": 1, "checks": 3},
            Activation.DYING_RELU,
            Readout.NEURONS,
            83,
        ),
        (
            {"inputs": 32, "sets": 2, "set_tiles": 3, "first_check": 2, "checks": 2},
            Activation.DYING_RELU,
            Readout.TOTALS,
            150,
        ),
        (
            {"inputs": 64, "sets": 1, "set_tiles": 2, "first_check": 0, "checks": 1},
            Activation.RELU,
            Readout.NEURONS,
            70,
        ),
        (
            {"inputs": 16, "sets": 3, "set_tiles": 1, "run": 4, "first_check": 0, "checks": 1},
            Activation.RELU,
            Readout.TOTALS,
            131,
        ),
    ],
)
def test_blocks_that_share_layers_give_the_same(
    emulator_toolchain: EmulatorToolchain,
    config: dict[str, Any],
    activation: Activation,
    readout: Readout,
    inputs: int,
) -> None:
    chosen = FAMILY.config(**{"warps": 4, "run": 2, "stages": 3, "sharing": "layers"} | config)
    matrix = mixed(256, 7, DType.FLOAT16)
    check_network(emulator_toolchain, chosen, matrix, activation, readout, inputs=inputs)


def test_a_grid_that_waits_has_no_more_blocks_than_work_or_room() -> None:
    problem = SparseNetworkProblem(120 * 16384, 16387, 64, DType.FLOAT16)
    apart = FAMILY.config(inputs=64, warps=8, run=8, sharing="inputs", first_check=0, checks=1)
    shared = replace(apart, run=4, sharing="layers")
    launch = FAMILY.launch(problem, shared, {}, H100)
    assert launch.together and launch.grid == (128, 1, 1), "1024 groups for one tile, 8 warps a block"
    many = replace(problem, n=60000)
    assert FAMILY.launch(many, shared, {}, H100).grid == (H100.multiprocessors, 1, 1)
    assert not FAMILY.launch(many, apart, {}, H100).together


def test_one_tile_that_all_blocks_share_is_expected_to_take_less() -> None:
    """Otherwise four blocks have 16 of 64 inputs each, and all weights."""
    problem = SparseNetworkProblem(120 * 16384, 16387, 64, DType.FLOAT16)
    features = Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)
    shared = FAMILY.heuristic(problem, features, H100)
    apart = FAMILY.config(inputs=64, warps=8, run=8, sharing="inputs", first_check=0, checks=1)
    us = [FAMILY.analytic_us(problem, features, config, H100) for config in (apart, shared)]
    assert shared.sharing == "layers" and us[1] < us[0] / 3


@pytest.mark.parametrize(
    ("neurons", "activation", "sharing"),
    [
        (4096, Activation.RELU, "inputs"),
        (16384, Activation.RELU, "layers"),
        (16384, Activation.DYING_RELU, "layers"),
        (65536, Activation.RELU, "layers"),
    ],
)
def test_layers_are_shared_where_that_was_faster(neurons: int, activation: Activation, sharing: str) -> None:
    problem = SparseNetworkProblem(120 * neurons, neurons + 3, 8448, DType.FLOAT16, activation)
    features = Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)
    assert FAMILY.heuristic(problem, features, H100).sharing == sharing


@pytest.mark.parametrize(
    ("neurons", "inputs", "sets", "set_tiles"),
    [
        (65536, 60000, 4, 1),
        (16384, 60000, 4, 4),
        (1 << 18, 60000, 2, 1),
        (1 << 20, 60000, 2, 1),
        (16384, 40, 4, 4),
    ],
)
def test_a_batch_fills_the_grid_and_stays_in_the_l2(
    neurons: int, inputs: int, sets: int, set_tiles: int
) -> None:
    problem = SparseNetworkProblem(120 * neurons, neurons + 3, inputs, DType.FLOAT16)
    features = Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)
    config = FAMILY.heuristic(problem, features, H100)
    assert (config.sets, config.set_tiles) == (sets, set_tiles)
    assert all(constraint.holds for constraint in FAMILY.constraints(problem, config, H100))


def test_a_batch_that_the_scratch_memory_has_no_room_for_is_refused() -> None:
    problem = SparseNetworkProblem(120 * 65536, 65539, 8448, DType.FLOAT16)
    config = FAMILY.config(
        inputs=64, warps=8, run=4, sharing="layers", sets=4, set_tiles=2, first_check=0, checks=1
    )
    broken = [c for c in FAMILY.constraints(problem, config, H100) if not c.holds]
    assert len(broken) == 1 and "neurons of a batch" in str(broken[0]), broken


def test_neurons_are_the_same_bits_whatever_batches_they_are_in(
    emulator_settings: Settings, tmp_path: Path
) -> None:
    """Tiles, sets and batches that are full or not, in launches of more or fewer inputs; a run is what orders sums."""
    rng = np.random.default_rng(5)
    made = radixnet(256, 5).layers
    layers = [layer.with_values(rng.uniform(-0.05, 0.1, layer.nnz).astype(np.float32)) for layer in made]
    network = Network.of(layers, [rng.uniform(-0.2, 0.1, 256).astype(np.float32) for _ in layers], CLIP)
    y0 = rng.uniform(0, 2, (83, 256)).astype(np.float16)
    right = None
    for config in ({"inputs": 64, "sharing": "inputs"}, {"inputs": 16, "sets": 2}, {"inputs": 32, "sets": 2}):
        net = SparseNetwork(
            network,
            device="emulator",
            db=tmp_path / "tuning.db",
            family="streamed_network",
            config={"sharing": "layers", "warps": 4, "run": 2, "stages": 3, "first_check": 0, "checks": 1}
            | config,
        )
        for count in (83, 35, 16):
            found = net(y0[:count])[0]
            right = found if right is None else right
            np.testing.assert_array_equal(found, right[:count])
