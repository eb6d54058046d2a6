"""`cluster_network` on layers whose rows share their columns; the contract's networks seldom have such."""

from __future__ import annotations

from typing import Any

import pytest
from network_samples import check_network, mixed

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.operators import DType, Readout
from sparsegen.operators.sparse_network import Activation

FAMILY = family("cluster_network")


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
    chosen, matrix = FAMILY.config(**config), mixed(64 * max(4, config["cluster"]), 9, DType.FLOAT16)
    packed = check_network(emulator_toolchain, chosen, matrix, activation, readout)
    assert (packed.arrays["layer_table"][0, :, 0] != 0).sum() == 8, "all but one are layers of pairs"
