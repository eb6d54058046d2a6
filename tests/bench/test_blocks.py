"""Block formats: which sizes fit a pattern, and matrices cut into them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from sparsegen.bench.baseline.blocks import block_sizes, cut, fill, has_blocks
from sparsegen.bench.baselines.cusparse import padded
from sparsegen.bench.baselines.torch_bsr import sizes_tried
from sparsegen.bench.patterns.generators import blocks, independent
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import as_csr


def test_the_pattern_s_own_size_comes_first() -> None:
    matrix = blocks(256, 128, 32, 0.3, seed=3)
    assert fill(matrix, 32) == fill(matrix, 16) == 1.0 > fill(matrix, 64)
    assert block_sizes(matrix)[:2] == [32, 16]
    assert has_blocks(Features.of(matrix))


def test_triton_may_take_larger_blocks_that_hold_zeros() -> None:
    """Blocks of 32 with few left out fill larger ones nearly; those of 16 gain nothing over them."""
    assert sizes_tried(block_sizes(blocks(512, 512, 32, 0.8, seed=0))) == [32, 128, 64]
    assert sizes_tried(block_sizes(blocks(512, 512, 32, 0.2, seed=0))) == [32]
    assert sizes_tried(block_sizes(blocks(512, 512, 128, 0.5, seed=0))) == [128, 64, 32]
    assert sizes_tried([16, 32]) == [16, 32] and sizes_tried([]) == []


def test_scattered_nonzeros_are_no_blocks() -> None:
    for density in (0.1, 0.5, 0.99):
        assert not has_blocks(Features.of(independent(128, 128, density, seed=0)))
    assert block_sizes(independent(130, 128, 0.9, seed=0)) == [], "16 does not divide 130"
    empty = as_csr(np.zeros((32, 32), dtype=np.float32))
    assert fill(empty, 16) == 0.0 and block_sizes(empty) == []


def test_fill_of_a_large_sparse_grid_is_counted_by_sorting() -> None:
    """A grid much larger than the nonzeros gives the same count as a small one."""
    columns = np.array([0, 5, 40_000, 70_000], dtype=np.int32)
    offsets = np.concatenate([np.zeros(90_000, dtype=np.int32), np.full(10_001, 4, dtype=np.int32)])
    matrix = CsrMatrix((100_000, 80_000), offsets, columns, np.ones(4, dtype=np.float32))
    assert fill(matrix, 16) == pytest.approx(4 / (3 * 256))


def test_cut_and_padded_hold_the_matrix() -> None:
    matrix = blocks(96, 64, 16, 0.4, seed=5)
    dense = matrix.to_scipy().toarray()
    parts = cut(matrix, 16)
    bsr = scipy.sparse.bsr_array((parts.values, parts.columns, parts.offsets), shape=matrix.shape)
    np.testing.assert_array_equal(bsr.toarray(), dense)

    columns, values = padded(parts)
    assert columns.shape == (6, int(np.diff(parts.offsets).max())) and values.shape == (
        96,
        columns.shape[1] * 16,
    )
    rebuilt = np.zeros_like(dense)
    for row, slots in enumerate(columns):
        for slot, column in enumerate(slots):
            block = values[16 * row : 16 * (row + 1), 16 * slot : 16 * (slot + 1)]
            if column < 0:
                assert not block.any()
            else:
                rebuilt[16 * row : 16 * (row + 1), 16 * column : 16 * (column + 1)] = block
    np.testing.assert_array_equal(rebuilt, dense)
