"""`resident_network` on networks of several layers of any pattern; the contract's networks seldom have such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from network_samples import check_network, layers_of, mixed, unstructured

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import family
from sparsegen.kernels.network.bank_order import balanced_teams, steps_apart
from sparsegen.kernels.network.resident_slices import Shape, resident_slices
from sparsegen.kernels.network.staged_slices import NONE
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation

FAMILY = family("resident_network")


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("dtype", "activation", "readout", "config"),
    [
        (DType.FLOAT32, Activation.RELU, Readout.NEURONS, {"inputs": 16, "warps": 8}),
        (DType.FLOAT16, Activation.DYING_RELU, Readout.TOTALS, {"inputs": 24, "warps": 8}),
        (DType.BFLOAT16, Activation.NONE, Readout.NEURONS, {"inputs": 8, "warps": 16}),
        (DType.FLOAT32, Activation.RELU, Readout.TOTALS, {"inputs": 4, "warps": 8}),
        (DType.FLOAT16, Activation.RELU, Readout.NEURONS, {"inputs": 64, "warps": 8}),
        (DType.FLOAT32, Activation.RELU, Readout.NEURONS, {"inputs": 8, "warps": 8, "cluster": 2}),
        (DType.FLOAT16, Activation.RELU, Readout.TOTALS, {"inputs": 16, "warps": 8, "cluster": 4}),
    ],
    ids=str,
)
def test_networks_of_several_layers(
    emulator_toolchain: EmulatorToolchain,
    dtype: DType,
    activation: Activation,
    readout: Readout,
    config: dict[str, Any],
) -> None:
    chosen = FAMILY.config(**config)
    for matrix in (unstructured((150, 300, 260, 260, 70), dtype), mixed(256, 9, dtype)):
        check_network(emulator_toolchain, chosen, matrix, activation, readout, dtype=dtype)


@pytest.mark.parametrize(
    "shape", [Shape(8, 4, 8, 2), Shape(16, 8, 4, 1), Shape(32, 4, 2, 8), Shape(1, 4, 8, 1)]
)
def test_every_weight_is_in_a_slice_of_its_neuron(shape: Shape) -> None:
    matrix = unstructured((150, 300, 260, 260, 70), DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 4, DType.FLOAT16)
    found = resident_slices(problem, matrix, shape)
    assert found.slices.size == problem.layers * shape.warps
    assert found.slices.sum() == found.chunks.size == len(found.rows)
    layer = np.repeat(np.repeat(np.arange(problem.layers), shape.warps), found.slices)
    chunk = shape.groups * shape.steps
    slices = np.repeat(np.arange(found.chunks.size), found.chunks * chunk)
    real = np.flatnonzero(found.source != NONE)
    assert sorted(found.source[real]) == np.flatnonzero(matrix.column_indices < problem.neurons).tolist()
    np.testing.assert_array_equal(found.index[real], matrix.column_indices[found.source[real]])
    row = np.searchsorted(matrix.row_offsets, found.source[real], side="right") - 1
    group = np.where(found.is_shared[slices[real]], 0, real % chunk // shape.steps)
    np.testing.assert_array_equal(
        row, layer[slices[real]] * problem.neurons + found.rows[slices[real], group]
    )
    neurons = [row for row in found.rows.ravel() if row != NONE]
    assert len(neurons) == problem.m, "each neuron is in one slice"


def test_warps_have_as_much_to_do() -> None:
    """One neuron takes all of the layer before: its weights are shared, and no warp waits for another's."""
    rng = np.random.default_rng(0)
    kept = rng.random((512, 512)) < 0.05
    kept[7] = True
    matrix = layers_of(kept)
    problem = SparseNetworkProblem(*matrix.shape, 4, DType.FLOAT16)
    found = resident_slices(problem, matrix, Shape(8, 4, 8, 1))
    [shared] = np.flatnonzero(found.is_shared)
    assert found.rows[shared, 0] == 7
    assert found.chunks[shared] == 512 // 8 // 4
    of_warps = np.add.reduceat(found.chunks, np.cumsum(found.slices) - found.slices)
    assert of_warps.max() < 1.25 * of_warps.mean()


def test_constraints_in_words() -> None:
    problem = SparseNetworkProblem(6144, 2051, 100, DType.FLOAT32)
    for config, sentence in (
        ({"inputs": 64}, "two layers of neurons take"),
        ({"inputs": 24}, r"inputs .24. are a power of two"),
        ({"inputs": 4, "cluster": 2, "resident_blocks": 2}, "have a multiprocessor each"),
        ({"inputs": 4, "warps": 32, "resident_blocks": 2}, "a thread needs about"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            FAMILY.require_valid(problem, FAMILY.config(**config), device())


def test_groups_that_read_together_meet_different_banks() -> None:
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permuted(np.tile(np.arange(512), (512, 1)), axis=1)[:, :32], axis=1)
    kept = np.zeros((512, 512), dtype=bool)
    np.put_along_axis(kept, columns, True, axis=1)
    matrix = layers_of(kept)
    problem = SparseNetworkProblem(*matrix.shape, 4, DType.FLOAT32)
    found = resident_slices(problem, matrix, Shape(8, 4, 8, 8))
    kinds = found.index[: 512 * 32].reshape(-1, 8, 4).transpose(0, 2, 1).reshape(-1, 8) % 8
    most = np.array([np.bincount(eight, minlength=8).max() for eight in kinds])
    assert most.mean() < 1.1, "in the order of columns it is 2.6"
    assert (np.sort(found.rows % 8, axis=1) == np.arange(8)).all(), "they write to different banks too"


def test_teams_of_rows_that_lack_some_kinds_have_no_conflicts() -> None:
    """Rows of a team have all of their neurons of one kind, each of another, and as many in turn as there are steps."""
    kind = np.repeat(np.arange(8), 4)
    row = np.repeat(np.arange(8), 4)
    found = steps_apart(np.zeros(32, np.int64), row, kind, 1, np.array([6]), 8)
    steps = np.concatenate((found.step, found.left))
    rows, kinds = np.concatenate((row, found.row)), np.concatenate((kind, found.kind))
    for step in range(6):
        assert sorted(rows[steps == step]) == sorted(kinds[steps == step]) == list(range(8))


def test_teams_exchange_rows_until_kinds_are_even() -> None:
    counts = np.repeat(np.eye(8, dtype=np.int64) * 8, 8, axis=0)  # a team's rows are of one kind
    rows = balanced_teams(counts, np.full(64, 8), 8)
    assert sorted(rows) == list(range(64))
    assert counts[rows].reshape(8, 8, 8).sum(axis=1).max() <= 16
    kept = balanced_teams(counts, np.repeat([8, 16], 32), 8)
    assert (kept[:32] < 32).all(), "rows are exchanged for others with as many steps"
