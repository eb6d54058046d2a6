"""Rows that share their columns."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.column_sets import tiles_of_groups, together
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
