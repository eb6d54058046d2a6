"""`cluster_network` on layers whose rows share their columns; the contract's networks seldom have such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant

FAMILY = family("cluster_network")


def mixed(neurons: int, layers: int) -> CsrMatrix:
    """The challenge's layers with other weights, and one in the middle whose rows share nothing."""
    rng = np.random.default_rng(1)
    made = radixnet(neurons, layers).layers
    weights = [layer.with_values(rng.uniform(-0.05, 0.1, layer.nnz).astype(np.float32)) for layer in made]
    pattern = rng.random((neurons, neurons)) < 0.1
    weights[layers // 2] = csr(np.where(pattern, rng.uniform(0, 0.08, pattern.shape), 0).astype(np.float32))
    biases = [rng.uniform(-0.3, 0, neurons).astype(np.float32) for _ in weights]
    return Network.of(weights, biases, CLIP).stacked(DType.FLOAT16)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("config", "activation", "readout"),
    [
        (
            {"cluster": 2, "inputs": 40, "warps": 4, "run": 4, "first_check": 1, "checks": 3},
            Activation.DYING_RELU,
            Readout.NEURONS,
        ),
        (
            {"cluster": 4, "inputs": 8, "warps": 4, "run": 2, "first_check": 2, "checks": 1},
            Activation.DYING_RELU,
            Readout.TOTALS,
        ),
        (
            {"cluster": 2, "inputs": 24, "warps": 4, "run": 2, "first_check": 0, "checks": 1},
            Activation.NONE,
            Readout.NEURONS,
        ),
        (
            {"cluster": 16, "inputs": 24, "warps": 4, "run": 1, "first_check": 1, "checks": 2},
            Activation.DYING_RELU,
            Readout.NEURONS,
        ),
        (
            {
                "cluster": 2,
                "inputs": 24,
                "warps": 4,
                "run": 2,
                "sending": "listed",
                "first_check": 1,
                "checks": 2,
            },
            Activation.DYING_RELU,
            Readout.NEURONS,
        ),
        (
            {
                "cluster": 2,
                "inputs": 40,
                "warps": 4,
                "run": 4,
                "sending": "listed",
                "first_check": 0,
                "checks": 1,
            },
            Activation.RELU,
            Readout.TOTALS,
        ),
    ],
)
def test_chains_twins_and_a_general_layer_between(
    emulator_toolchain: EmulatorToolchain, config: dict[str, Any], activation: Activation, readout: Readout
) -> None:
    matrix = mixed(64 * max(4, config["cluster"]), 9)
    kind = Kind(
        SparseNetworkProblem,
        (("n", 83),),
        (("dtype", DType.FLOAT16), ("activation", activation), ("readout", readout)),
    )
    problem, chosen = kind.problem(matrix), FAMILY.config(**config)
    source = render(FAMILY, problem, chosen)
    variant = Variant(FAMILY, chosen, kind, ("mixed",), source)
    packed = FAMILY.pack(problem, chosen, matrix)
    assert (packed.arrays["layer_table"][0, :, 0] != 0).sum() == 8, "all but one are layers of pairs"
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    run_and_compare(variant, kernel, problem, matrix, packed, where="mixed")
