"""Masks of blocks from and to other libraries' forms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

from sparsegen.errors import MatrixError
from sparsegen.matrix.block_mask import BlockMask
from sparsegen.matrix.block_mask_formats import (
    from_bsr,
    from_counts,
    from_csr_of_blocks,
    to_bsr,
    to_counts,
    to_csr_of_blocks,
)
from sparsegen.system.numpy_types import Array


@pytest.fixture
def mask() -> BlockMask:
    live = np.random.default_rng(0).random((6, 9)) < 0.4
    live[2] = False
    live[4] = True
    return BlockMask.from_blocks(live, (4, 2))


def test_bsr(mask: BlockMask) -> None:
    bsr = to_bsr(mask)
    assert np.array_equal(bsr.toarray(), mask.expand()) and bsr.blocksize == (4, 2)
    assert np.array_equal(from_bsr(bsr).words, mask.words)
    zeros = scipy.sparse.bsr_array((np.zeros((1, 2, 2)), [1], [0, 1, 1]), shape=(4, 4))
    assert from_bsr(zeros).blocks().tolist() == [[False, True], [False, False]], "stored is live"


def test_csr_of_blocks(mask: BlockMask) -> None:
    offsets, columns = to_csr_of_blocks(mask)
    of_blocks = scipy.sparse.csr_array((np.ones(columns.size, dtype=bool), columns, offsets), shape=(6, 9))
    assert np.array_equal(of_blocks.toarray(), mask.blocks())
    back = from_csr_of_blocks(offsets, columns, (4, 2), (24, 18))
    assert np.array_equal(back.words, mask.words)
    unsorted: Array = np.concatenate([columns[a:b][::-1] for a, b in pairwise(offsets)])
    assert np.array_equal(from_csr_of_blocks(offsets, unsorted, (4, 2), (24, 18)).words, mask.words)
    with pytest.raises(MatrixError, match=r"column 9 is outside \[0, 9\)"):
        from_csr_of_blocks(offsets, np.where(columns == 8, 9, columns), (4, 2), (24, 18))
    with pytest.raises(MatrixError, match="7 rows need 8 offsets, got 7"):
        from_csr_of_blocks(offsets, columns, (4, 2), (25, 18))


def test_counts_and_indices(mask: BlockMask) -> None:
    counts, indices = to_counts(mask)
    assert counts.dtype == indices.dtype == np.int32 and indices.shape == (6, 9)
    for row, live in enumerate(mask.blocks()):
        assert indices[row, : counts[row]].tolist() == np.flatnonzero(live).tolist()
        assert sorted(indices[row]) == list(range(9))
    assert np.array_equal(from_counts(counts, indices, (4, 2), (24, 18)).words, mask.words)
    unused = np.where(np.arange(9) < counts[:, None], indices, -7)
    assert np.array_equal(from_counts(counts, unused, (4, 2), (23, 17)).blocks(), mask.blocks())


def test_bad_counts(mask: BlockMask) -> None:
    counts, indices = to_counts(mask)
    with pytest.raises(MatrixError, match=r"counts\[0\]: 10 live blocks among 9 columns"):
        from_counts(np.where(np.arange(6) == 0, 10, counts), indices, (4, 2), (24, 18))
    with pytest.raises(MatrixError, match=r"6 rows of blocks need .* got shapes \(5,\) and \(6, 9\)"):
        from_counts(counts[1:], indices, (4, 2), (24, 18))
    with pytest.raises(MatrixError, match="indices: expected integers, got float64"):
        from_counts(counts, indices.astype(float), (4, 2), (24, 18))
    with pytest.raises(MatrixError, match=r"column -1 is outside \[0, 9\)"):
        from_counts(counts, np.full_like(indices, -1), (4, 2), (24, 18))


def test_blocks_that_do_not_divide() -> None:
    mask = BlockMask.from_blocks(np.ones((6, 9), dtype=bool), (4, 2), (23, 18))
    with pytest.raises(MatrixError, match="4 × 2 do not divide 23 × 18; pad it to 24 × 18"):
        to_bsr(mask)
    with pytest.raises(
        MatrixError, match=r"expected a scipy.sparse matrix in BSR, got csr_array; use .tobsr"
    ):
        from_bsr(scipy.sparse.csr_array((4, 4)))
