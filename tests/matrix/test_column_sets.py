"""Rows that share their columns."""

from __future__ import annotations

import numpy as np

from sparsegen.bench.patterns.generators import blocks, equal_rows, power_law, shared_rows
from sparsegen.matrix.column_sets import shared_fill, tiles_of_groups, together
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.radixnet import radixnet


def test_equal_rows_stand_together() -> None:
    layer = radixnet(256, 5, seed=3).layers[4]
    order = together(layer.row_offsets, layer.column_indices, 256)
    assert sorted(order) == list(range(256))
    sets = layer.column_indices.reshape(256, 32)[order].reshape(-1, 16, 32)
    assert (sets == sets[:, :1]).all()


def test_tiles_of_rows_that_share_all_or_nothing() -> None:
    layer = radixnet(256, 1).layers[0]
    assert tiles_of_groups(layer.row_offsets, layer.column_indices, 256) == 2 * 16
    apart = np.arange(64)  # each row has a column of its own
    assert tiles_of_groups(np.arange(65), apart, 64) == 4
    wide = np.arange(64 * 16)  # 16 of its own
    assert tiles_of_groups(np.arange(65) * 16, wide, 1024) == 64
    assert tiles_of_groups(np.zeros(5, np.int64), np.zeros(0, np.int64), 7) == 0


def fill_of(matrix: CsrMatrix) -> float:
    return shared_fill(matrix.row_offsets, matrix.column_indices)


def test_the_fill_of_rows_that_share_is_that_of_their_tiles() -> None:
    for matrix in (
        shared_rows(512, 300, 16, 0.2, 1),
        shared_rows(512, 300, 4, 0.2, 1),  # sampled whole
        blocks(256, 256, 32, 0.2, 1),
    ):
        tiles = tiles_of_groups(matrix.row_offsets, matrix.column_indices, matrix.shape[1])
        assert 0.9 <= fill_of(matrix) / (matrix.nnz / (tiles * 256)) <= 1.1


def test_rows_that_share_nothing_have_no_fill() -> None:
    for matrix in (
        equal_rows(512, 300, 0.2, 1),
        power_law(512, 12.0, 2.5, 1),
        shared_rows(64, 300, 1, 0.2, 1),
        CsrMatrix.without_nonzeros((40, 30)),
        CsrMatrix.without_nonzeros((0, 30)),
    ):
        assert fill_of(matrix) == 0.0


def test_some_equal_rows_among_others_are_not_enough() -> None:
    apart, shared = equal_rows(300, 200, 0.1, 1), shared_rows(112, 200, 16, 0.1, 1)
    offsets = np.concatenate((apart.row_offsets, apart.nnz + shared.row_offsets[1:]))
    assert shared_fill(offsets, np.concatenate((apart.column_indices, shared.column_indices))) == 0.0
    assert fill_of(shared) > 0.0
