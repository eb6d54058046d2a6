"""`tma_block_spmm` with narrow tiles in pairs: packing, what NaN in B reaches, and that searches alone try them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tuning_samples import H100

import sparsegen
from sparsegen.errors import ConfigError
from sparsegen.kernels.layouts.copied_ring import TILE_M
from sparsegen.kernels.spmm.block_tiles import CHUNK, HALF_K, TILE_K
from sparsegen.kernels.spmm.tensor_tiles import swizzled_places
from sparsegen.kernels.spmm.tma_block_spmm import FAMILY
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.testing.matrices import csr, matrices

NARROW = FAMILY.config(tile_k=HALF_K, tile_n=64, cluster=1)


@pytest.mark.parametrize("name", [name for name, matrix in matrices().items() if matrix.shape[1]])
def test_pairs_hold_every_nonzero_and_tiles_without_any_are_left_out(name: str) -> None:
    matrix = matrices()[name]
    m, k = matrix.shape
    packed = FAMILY.pack(SpmmProblem(m, k, 8, DType.FLOAT16), NARROW, matrix)
    count, arrays = packed.sizes["row_block_count"], packed.arrays
    offsets, pairs = arrays["offsets"], arrays["panels"].reshape(-1, 2)
    assert len(pairs) == offsets[-1] + 1, "a pair's panels are read ahead"
    area = TILE_M * TILE_K
    values = arrays["values"].view(np.float16)[: offsets[-1] * area].reshape(-1, area)
    rebuilt = np.zeros((max(1, count) * TILE_M, -(-k // HALF_K) * HALF_K), dtype=np.float16)
    for i, block in enumerate(arrays["row_blocks"][:count]):
        rows = slice(block * TILE_M, (block + 1) * TILE_M)
        for at in range(*offsets[i : i + 2]):
            tile = values[at][swizzled_places(TILE_M, TILE_K, CHUNK)].reshape(TILE_M, 2, HALF_K)
            is_alone = pairs[at, 0] == pairs[at, 1]
            assert tile[:, 0].any() and tile[:, 1].any() != is_alone
            assert not is_alone or at == offsets[i + 1] - 1
            for half, panel in enumerate(pairs[at]):
                rebuilt[rows, panel * HALF_K : (panel + 1) * HALF_K] += tile[:, half]
    np.testing.assert_array_equal(rebuilt[:m, :k], matrix.to_scipy().toarray().astype(np.float16))


def test_nan_in_rows_of_b_that_no_tile_meets_changes_nothing() -> None:
    """Three of five tiles have nonzeros, so that the last one has no partner."""
    dense = np.zeros((40, 5 * HALF_K), dtype=np.float32)
    dense[:, :HALF_K] = dense[:, 2 * HALF_K : 4 * HALF_K] = 1.0
    b = np.ones((5 * HALF_K, 8), dtype=np.float16)
    b[HALF_K : 2 * HALF_K], b[4 * HALF_K :] = np.nan, np.inf
    operator = sparsegen.prepare(
        csr(dense),
        n=8,
        dtype=DType.FLOAT16,
        family=FAMILY.name,
        config=NARROW.to_dict(),
        device="emulator",
    )
    np.testing.assert_array_equal(operator(b=b), np.full((40, 8), 3.0 * HALF_K, dtype=np.float16))


def test_b_by_columns_has_wide_tiles() -> None:
    with pytest.raises(ConfigError, match=r"tile_k \(32\)"):
        FAMILY.require_valid(SpmmProblem(64, 64, 64, DType.FLOAT16, Layout.COLUMN), NARROW, H100)


def test_records_without_tile_k_have_wide_tiles() -> None:
    assert FAMILY.config_type.parse({"tile_n": 128, "cluster": 1}) == FAMILY.config(
        tile_n=128, cluster=1, tile_k=TILE_K
    )


@pytest.mark.parametrize(("size", "cov", "longest"), [(32, 0.26, 0.18), (128, 0.53, 0.25)])
def test_narrow_tiles_are_for_searches_alone(size: int, cov: float, longest: float) -> None:
    """A tenth of the blocks of 4096 by 4096 elements are full, and rows are as uneven as such blocks make them."""
    side = 4096
    features = Features(side, side, side * side // 10, side / 10, cov, round(longest * side), 1.0)
    problem = SpmmProblem(side, side, side, DType.FLOAT16)
    usual = FAMILY.heuristic(problem, features, H100)
    assert usual.tile_k == TILE_K, "narrow ones were not measured"
    narrow = FAMILY.analytic_us(problem, features, replace(usual, tile_k=HALF_K), H100)
    assert (1.15 * narrow < FAMILY.analytic_us(problem, features, usual, H100)) == (size == 32)
