"""Features of patterns that can be counted by hand."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import GRID_PER_NONZERO, Features, occupied_blocks


def matrix(rows: list[list[int]], columns: int) -> CsrMatrix:
    """Ones in these columns of each row."""
    offsets = np.cumsum([0, *(len(row) for row in rows)])
    indices = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
    return CsrMatrix((len(rows), columns), offsets, indices, np.ones(indices.size, np.float32))


def test_rows_and_blocks() -> None:
    """Lengths 1, 3, 0 and 4: mean 2, deviations 1, 1, 2 and 2. Columns 0 to 15 are one block, 16 to 19 another."""
    found = Features.of(matrix([[0], [1, 2, 19], [], [3, 4, 5, 6]], 20))
    assert found == Features(
        m=4, k=20, nnz=8, row_mean=2.0, row_cov=sqrt(2.5) / 2, row_max=4, block_fill=8 / 512
    )
    assert found.density == 0.1


def test_equal_rows_do_not_vary() -> None:
    found = Features.of(matrix([[0, 1], [2, 3], [4, 5]], 6))
    assert (found.row_mean, found.row_cov, found.row_max, found.block_fill) == (2.0, 0.0, 2, 6 / 256)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 4)])
def test_without_nonzeros_all_is_nought(shape: tuple[int, int]) -> None:
    empty = CsrMatrix(shape, np.zeros(shape[0] + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    assert Features.of(empty) == Features(*shape, nnz=0, row_mean=0, row_cov=0, row_max=0, block_fill=0)
    assert Features.of(empty).density == 0


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("nonzeros", [2, 5000])
def test_blocks_are_counted_alike_in_a_grid_and_by_sorting(size: int, nonzeros: int) -> None:
    rng = np.random.default_rng(nonzeros)
    dense = np.zeros((97, 83), dtype=bool)
    dense.reshape(-1)[rng.choice(dense.size, nonzeros, replace=False)] = True
    found = matrix([np.flatnonzero(row).tolist() for row in dense], 83)
    padded = np.pad(dense, ((0, -97 % size), (0, -83 % size)))
    blocks = padded.reshape(padded.shape[0] // size, size, -1, size).any(axis=(1, 3))
    assert occupied_blocks(found, size) == blocks.sum()
    is_sorted = blocks.size > GRID_PER_NONZERO * nonzeros
    assert is_sorted == (nonzeros == 2)
