"""Division of patterns into tasks for `panel_sddmm`."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.kernels.sddmm.panel_tasks import Groups
from sparsegen.testing.matrices import matrices


@pytest.mark.parametrize("sort_rows", [False, True])
@pytest.mark.parametrize(
    "name", ["empty_rows", "huge_row", "every_row_length", "dense", "no_nonzeros", "no_columns"]
)
def test_tasks_hold_every_nonzero_once(name: str, sort_rows: bool) -> None:
    matrix = matrices()[name]
    panel_n, strip, strips, width = 64, 4, 4, 8
    groups = Groups.of(
        matrix, panel_n=panel_n, strip=strip, strips=strips, tasks_per_group=width, sort_rows=sort_rows
    )
    assert groups.first.size == -(-matrix.shape[1] // panel_n) + 1
    assert len(groups.tasks) == groups.first[-1] * width
    covered = []
    read = np.zeros(groups.indices.size // strip, dtype=int)
    for number, (row, first, begin, extents) in enumerate(groups.tasks):
        count, listed = extents & 0xFFFF, extents >> 16
        panel = np.searchsorted(groups.first, number // width, side="right") - 1
        assert -(-count // strip) <= listed <= strips
        own = begin + width * np.arange(listed)
        read[own] += 1
        columns = groups.indices.reshape(-1, strip)[own].ravel()[:count] + panel * panel_n
        assert np.array_equal(columns, matrix.column_indices[first : first + count])
        if count:
            assert matrix.row_offsets[row] <= first and first + count <= matrix.row_offsets[row + 1]
        covered += range(first, first + count)
    assert sorted(covered) == list(range(matrix.nnz))
    assert np.all(read == 1), "each strip belongs to one task"
