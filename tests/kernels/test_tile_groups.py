"""Groups and blocks of a network's layers, and where values of them go."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.kernels.layouts.network_tiles import network_tiles, stored_together
from sparsegen.kernels.layouts.tile_groups import BANKS, NONE, SIDE, LayerKind, TileGroups, in_rows, spread
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import base_layers, radixnet
from sparsegen.operators import DType, SparseNetworkProblem
from sparsegen.testing.matrices import csr, matrices


def groups_of(matrix, run: int = 4) -> TileGroups:  # type: ignore[no-untyped-def]
    return TileGroups.of(matrix.row_offsets, matrix.column_indices, matrix.shape[1], run)


@pytest.mark.parametrize(
    "name", ["odd_shape", "empty_rows", "huge_row", "dense", "no_nonzeros", "no_columns"]
)
def test_tiles_cover_every_nonzero_of_any_matrix(name: str) -> None:
    matrix = matrices()[name]
    groups = groups_of(matrix)
    assert np.array_equal(np.sort(groups.rows[groups.rows != NONE]), np.arange(matrix.shape[0]))
    assert np.array_equal(np.sort(groups.columns[groups.columns != NONE]), np.arange(matrix.shape[1]))
    for number, rows in enumerate(groups.rows):
        tiles = set(groups.tiles[groups.first[number] : groups.first[number + 1]].tolist())
        for row in rows[rows != NONE]:
            begin, end = matrix.row_offsets[row : row + 2]
            assert set(groups.block[matrix.column_indices[begin:end]].tolist()) <= tiles


def test_layers_of_the_challenge_are_chains_and_in_each_base_one_of_twins() -> None:
    base = base_layers(1024)
    kinds = [groups_of(layer).kind for layer in radixnet(1024, 2 * base).layers]
    assert kinds == [*[LayerKind.CHAINS] * (base - 1), LayerKind.TWINS] * 2


def test_places_meet_no_bank_conflicts() -> None:
    layers = radixnet(256, 7, seed=5).layers
    writers = in_rows(np.arange(256))
    for layer in layers:
        groups = groups_of(layer)
        columns = spread(writers, groups.columns)
        assert np.array_equal(np.sort(columns, axis=1), np.sort(groups.columns, axis=1)), "blocks stay"
        place = np.empty(256, dtype=np.int64)
        place[columns.ravel()] = np.arange(256)
        counts = np.apply_along_axis(np.bincount, 1, place[writers] % BANKS, minlength=BANKS)
        assert (counts == SIDE // BANKS).all()
        writers = groups.rows


def test_lanes_that_store_inputs_at_once_meet_no_bank_conflicts() -> None:
    """A lane reads 4 neurons and stores one after another; 8 lanes beside each other store in one access."""
    matrix = radixnet(256, 2, seed=5).stacked(DType.FLOAT16)
    tiles = network_tiles(SparseNetworkProblem(*matrix.shape, 8, DType.FLOAT16), matrix, 4, 16)
    assert np.array_equal(np.sort(tiles.inputs), np.arange(256))
    banks = tiles.inputs.reshape(-1, 8, 4) % BANKS
    assert (np.sort(banks, axis=1) == np.arange(BANKS)[:, None]).all()
    lone = stored_together(16)  # what is left of a lane's neurons is put together as well
    assert lone.shape == (2, BANKS) and np.array_equal(np.sort(lone.ravel()), np.arange(16))


def test_every_value_has_one_place() -> None:
    rng = np.random.default_rng(0)
    random = csr((rng.random((64, 64)) < 0.4).astype(np.float32))
    network = Network.of([*radixnet(64, 3).layers, random, radixnet(64, 1).layers[0]], -0.1, 1.0)
    matrix = network.stacked(DType.FLOAT16)
    tiles = network_tiles(SparseNetworkProblem(*matrix.shape, 8, DType.FLOAT16), matrix, 1, 4)
    assert np.array_equal(np.sort(tiles.source[tiles.source != NONE]), np.arange(matrix.nnz))
    assert [kind is LayerKind.GENERAL for kind in tiles.kinds] == [False, False, False, True, False]
