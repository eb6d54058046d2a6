"""`fused_network` where few blocks take what is left, where runs take turns, and where tiles are in a ring."""

from __future__ import annotations

import numpy as np
import pytest
from network_samples import check_network

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.matrix.generators import random_rows
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation

FAMILY = family("fused_network")


@pytest.mark.sanitizer
@pytest.mark.parametrize("left", [0, 1, 40, 23 * 8])
def test_the_rest_goes_to_few_blocks(emulator_toolchain: EmulatorToolchain, left: int) -> None:
    """All inputs are computed, once each: whole tiles of all blocks, and more or less than a piece for each."""
    matrix = radixnet(64, 3).stacked(DType.FLOAT16)
    inputs = 24 * device().multiprocessors + left
    chosen = FAMILY.config(inputs=24, warps=4, run=1, parts=2, rest=16, first_check=0, checks=1)
    check_network(emulator_toolchain, chosen, matrix, Activation.RELU, Readout.TOTALS, inputs=inputs)


@pytest.mark.sanitizer
@pytest.mark.parametrize("activation", [Activation.RELU, Activation.DYING_RELU])
@pytest.mark.parametrize(
    ("warps", "run", "each", "ahead"), [(4, 2, 7, 32), (4, 4, 12, 32), (8, 2, 28, 32), (4, 1, 20, 32)]
)
def test_runs_take_turns(
    emulator_toolchain: EmulatorToolchain,
    activation: Activation,
    warps: int,
    run: int,
    each: int,
    ahead: int,
) -> None:
    """One pass or several in a layer, an even or odd number of layers, and biases as products."""
    matrix = radixnet(256, 9).stacked(DType.FLOAT16)
    dies = activation is Activation.DYING_RELU
    chosen = FAMILY.config(
        inputs=40,
        warps=warps,
        run=run,
        parts=2,
        biases="multiplied",
        ahead=ahead,
        first_check=2 if dies else 0,
        checks=2 if dies else 1,
    )
    inputs = each * device().multiprocessors
    check_network(emulator_toolchain, chosen, matrix, activation, Readout.NEURONS, inputs=inputs)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("neurons", "warps", "run", "inputs", "readout"),
    [
        (256, 4, 4, 200, Readout.NEURONS),
        (256, 8, 2, 170, Readout.TOTALS),
        (256, 8, 2, 61, Readout.NEURONS),
    ],
)
def test_tiles_in_a_ring(
    emulator_toolchain: EmulatorToolchain, neurons: int, warps: int, run: int, inputs: int, readout: Readout
) -> None:
    """Tiles of four to six pairs of chunks, some half full, chains, twins and a layer of groups with many tiles."""
    made = radixnet(neurons, 11)
    drawn = random_rows(neurons, neurons, 0.03, 0.3, seed=5)
    scattered = drawn.with_values(np.full(drawn.nnz, 1 / 8, np.float32))
    network = Network.of((*made.layers[:5], scattered, *made.layers[5:]), -0.25, 32.0)
    matrix = network.stacked(DType.FLOAT16)
    chosen = FAMILY.config(
        inputs=96, warps=warps, run=run, parts=2, biases="multiplied", first_check=0, checks=1
    )
    problem = SparseNetworkProblem(*matrix.shape, inputs, DType.FLOAT16, Activation.RELU, readout)
    assert not FAMILY.broken_constraints(problem, chosen, device())
    check_network(emulator_toolchain, chosen, matrix, Activation.RELU, readout, inputs=inputs)
