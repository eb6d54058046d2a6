"""`staged_network` on networks of several layers of any pattern; the contract's networks seldom have such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from network_samples import check_network, mixed, unstructured

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import family
from sparsegen.kernels.network.staged_slices import NONE, staged_slices
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.system.device_memory import WARP

FAMILY = family("staged_network")


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("dtype", "activation", "readout", "config"),
    [
        (
            DType.FLOAT16,
            Activation.DYING_RELU,
            Readout.NEURONS,
            {"minibatch": 16, "buffer": 128, "warps": 4, "first_check": 1, "checks": 3},
        ),
        (
            DType.FLOAT32,
            Activation.DYING_RELU,
            Readout.TOTALS,
            {
                "minibatch": 12,
                "vector": 1,
                "buffer": 128,
                "warps": 4,
                "staging": "neurons",
                "order": "columns",
                "checks": 6,
                "first_check": 1,
            },
        ),
        (
            DType.FLOAT32,
            Activation.RELU,
            Readout.NEURONS,
            {"minibatch": 32, "vector": 4, "buffer": 256, "warps": 8, "resident_blocks": 1},
        ),
        (
            DType.BFLOAT16,
            Activation.NONE,
            Readout.TOTALS,
            {
                "minibatch": 24,
                "vector": 4,
                "buffer": 128,
                "warps": 4,
                "staging": "neurons",
                "order": "columns",
            },
        ),
        (
            DType.FLOAT16,
            Activation.DYING_RELU,
            Readout.TOTALS,
            {
                "minibatch": 12,
                "vector": 2,
                "buffer": 128,
                "warps": 4,
                "staging": "neurons",
                "first_check": 2,
                "checks": 2,
            },
        ),
    ],
)
def test_networks_of_several_layers(
    emulator_toolchain: EmulatorToolchain,
    dtype: DType,
    activation: Activation,
    readout: Readout,
    config: dict[str, Any],
) -> None:
    chosen = FAMILY.config(**({"resident_blocks": 1, "first_check": 0, "checks": 1} | config))
    for matrix in (unstructured((150, 300, 260, 260, 70), dtype), mixed(256, 9, dtype)):
        check_network(emulator_toolchain, chosen, matrix, activation, readout, dtype=dtype)


def test_every_weight_stands_where_its_neuron_is_staged() -> None:
    matrix = unstructured((150, 300, 260, 260, 70), DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 4, DType.FLOAT16)
    rows, buffer = 64, 48
    for classes in (1, 8):
        found = staged_slices(problem, matrix, rows, buffer, classes)
        assert found.places.size == found.staged.size * rows // WARP
        first_neuron = np.cumsum(found.staged) - found.staged
        slices = np.repeat(np.arange(found.places.size), found.places * WARP)
        buffers = slices // (rows // WARP)
        real = np.flatnonzero(found.source != NONE)
        assert sorted(found.source[real]) == np.flatnonzero(matrix.column_indices < problem.neurons).tolist()
        neuron = found.neurons[first_neuron[buffers[real]] + found.index[real]]
        np.testing.assert_array_equal(neuron, matrix.column_indices[found.source[real]])
        row = np.searchsorted(matrix.row_offsets, found.source[real], side="right") - 1
        block = np.repeat(np.arange(found.buffers.size), found.buffers)[buffers[real]]
        per_layer = -(-problem.neurons // rows)
        lane = slices[real] % (rows // WARP) * WARP + real % WARP
        np.testing.assert_array_equal(
            row, block // per_layer * problem.neurons + block % per_layer * rows + lane
        )


def test_neighbouring_lanes_read_different_banks() -> None:
    """Random rows with different banks: about four fifths have no conflict, and in the order of columns one third."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permuted(np.tile(np.arange(1024), (1024, 1)), axis=1)[:, :32], axis=1)
    layer = CsrMatrix((1024, 1024), np.arange(1025) * 32, columns.ravel(), np.ones(columns.size, np.float32))
    matrix = Network.of([layer, layer], 0.0, CLIP).stacked(DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 4, DType.FLOAT16)

    def cycles(classes: int) -> float:
        bank = staged_slices(problem, matrix, 1024, 1024, classes).index.reshape(-1, 8) % 8
        most = np.array([np.bincount(eight, minlength=8).max() for eight in bank])
        return float(most.mean())

    assert cycles(1) > 2.4
    assert cycles(8) < 1.9


def test_constraints_in_words() -> None:
    problem = SparseNetworkProblem(640, 67, 100, DType.FLOAT32)
    for config, sentence in (
        ({"vector": 8}, "a vector .8. of float32 has 4, 8 or 16 bytes, not 32"),
        ({"vector": 8, "minibatch": 12}, "minibatch .12. is a multiple of vector .8."),
        ({"vector": 4, "minibatch": 32, "buffer": 4096}, "staged neurons take"),
        ({"vector": 4, "minibatch": 32, "warps": 32}, "a thread needs about"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            FAMILY.require_valid(problem, FAMILY.config(first_check=0, checks=1, **config), device())
