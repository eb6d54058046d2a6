"""`streamed_network` whose blocks share each layer, beside one whose blocks share the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from contract_calls import run_and_compare
from contract_cases import Kind, Variant
from contract_matrices import csr
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.networks.network import Network
from sparsegen.networks.radixnet import CLIP, radixnet
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.render import render

FAMILY = family("streamed_network")


def mixed(layers: int) -> CsrMatrix:
    """The challenge's layers with other weights, by which some inputs die, and one whose rows share nothing."""
    rng = np.random.default_rng(2)
    made = radixnet(256, layers).layers
    weights = [layer.with_values(rng.uniform(-0.05, 0.1, layer.nnz).astype(np.float32)) for layer in made]
    pattern = rng.random((256, 256)) < 0.1
    weights[2] = csr(np.where(pattern, rng.uniform(0, 0.08, pattern.shape), 0).astype(np.float32))
    biases = [rng.uniform(-0.4, 0, 256).astype(np.float32) for _ in weights]
    return Network.of(weights, biases, CLIP).stacked(DType.FLOAT16)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("config", "activation", "readout", "inputs"),
    [
        ({"inputs": 16, "first_check": 1, "checks": 3}, Activation.DYING_RELU, Readout.NEURONS, 83),
        ({"inputs": 32, "first_check": 2, "checks": 2}, Activation.DYING_RELU, Readout.TOTALS, 150),
        ({"inputs": 64, "first_check": 1, "checks": 6}, Activation.DYING_RELU, Readout.TOTALS, 131),
        ({"inputs": 64, "first_check": 0, "checks": 1}, Activation.RELU, Readout.NEURONS, 70),
    ],
)
def test_blocks_that_share_layers_give_the_same(
    emulator_toolchain: EmulatorToolchain,
    config: dict[str, Any],
    activation: Activation,
    readout: Readout,
    inputs: int,
) -> None:
    matrix = mixed(7)
    kind = Kind(
        SparseNetworkProblem,
        (("n", inputs),),
        (("dtype", DType.FLOAT16), ("activation", activation), ("readout", readout)),
    )
    chosen = FAMILY.config(**config, warps=4, run=2, stages=3, sharing="layers")
    problem = kind.problem(matrix)
    source = render(FAMILY, problem, chosen)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    packed = FAMILY.pack(problem, chosen, matrix)
    variant = Variant(FAMILY, chosen, kind, ("mixed",), source)
    run_and_compare(variant, kernel, problem, matrix, packed, where="mixed")


def test_a_grid_that_waits_has_no_more_blocks_than_work_or_room() -> None:
    problem = SparseNetworkProblem(120 * 16384, 16387, 64, DType.FLOAT16)
    features = Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)
    apart = FAMILY.heuristic(problem, features, H100)
    shared = replace(apart, sharing="layers")
    launch = FAMILY.launch(problem, shared, {}, H100)
    assert launch.together and launch.grid == (128, 1, 1), "1024 groups for one tile, 8 warps a block"
    many = replace(problem, n=60000)
    assert FAMILY.launch(many, shared, {}, H100).grid == (H100.multiprocessors, 1, 1)
    assert not FAMILY.launch(many, apart, {}, H100).together


def test_one_tile_that_all_blocks_share_is_expected_to_take_less() -> None:
    """By default what was measured runs: there four blocks have 16 of 64 inputs each, and all weights."""
    problem = SparseNetworkProblem(120 * 16384, 16387, 64, DType.FLOAT16)
    features = Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)
    apart = FAMILY.heuristic(problem, features, H100)
    us = [FAMILY.analytic_us(problem, features, c, H100) for c in (apart, replace(apart, sharing="layers"))]
    assert apart.sharing == "inputs" and us[1] < us[0] / 4


@pytest.mark.parametrize(
    ("neurons", "activation", "sharing"),
    [
        (16384, Activation.RELU, "inputs"),
        (16384, Activation.DYING_RELU, "layers"),
        (65536, Activation.RELU, "layers"),
    ],
)
def test_layers_are_shared_where_that_was_faster(neurons: int, activation: Activation, sharing: str) -> None:
    problem = SparseNetworkProblem(120 * neurons, neurons + 3, 8448, DType.FLOAT16, activation)
    features = Features(problem.m, problem.k, 35 * problem.m, 35.0, 0.0, 35, 1.0)
    assert FAMILY.heuristic(problem, features, H100).sharing == sharing
