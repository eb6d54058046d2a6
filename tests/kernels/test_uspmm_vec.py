"""`uspmm_vec`'s packing: the places of nonzeros among banks, and how HYB splits rows."""

from __future__ import annotations

import numpy as np
import pytest
from tuning_samples import H100

from sparsegen.backends.emulator import device
from sparsegen.kernels.spmm.uspmm_vec import FAMILY, UspmmVecConfig
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_rows, uniform_rows
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.testing.matrices import matrices

UNITS_PER_CYCLE = 8  # 16-byte loads of different banks that shared memory serves at once
M = K = 512


def wavefronts(config: UspmmVecConfig, indices: np.ndarray, steps: int) -> float:
    """Mean wavefronts of a quarter-warp's 16-byte loads of B, by the kernel's addressing; 1 is conflict-free."""
    sets = 32 // config.threads_per_row
    slices = M // (sets * config.vec_size)
    # [slice, set, nonzero in the order of the kernel's loop]
    order = indices.reshape(slices, steps, sets, -1).transpose(0, 2, 1, 3).reshape(slices, sets, -1)
    lane = np.arange(UNITS_PER_CYCLE)
    units = order[:, lane // config.threads_per_row] + (lane % config.threads_per_row)[:, None]
    taken = []
    for group in units.transpose(0, 2, 1).reshape(-1, UNITS_PER_CYCLE):
        banks = np.unique(group) % UNITS_PER_CYCLE
        taken.append(np.bincount(banks).max())
    return float(np.mean(taken))


@pytest.mark.parametrize(
    ("tile_n", "threads_per_row", "most"), [(64, 8, 1.0), (64, 4, 1.15), (16, 2, 1.25), (8, 1, 1.3)]
)
def test_neighbouring_sets_read_different_banks(tile_n: int, threads_per_row: int, most: float) -> None:
    config = UspmmVecConfig(tile_n=tile_n, threads_per_row=threads_per_row, vec_size=2, step=4)
    problem = SpmmProblem(M, K, 64, DType.FLOAT16, Layout.COLUMN)
    packed = FAMILY.pack(problem, config, uniform_rows(M, K, 200, 0))
    indices, steps = packed.arrays["indices"].astype(np.int64), packed.sizes["steps"]
    assert wavefronts(config, indices, steps) <= most
    if threads_per_row < UNITS_PER_CYCLE:
        shuffled = np.random.default_rng(0).permutation(indices)
        assert wavefronts(config, shuffled, steps) > 1.4, "the order makes no difference"


def hyb_config() -> UspmmVecConfig:
    return UspmmVecConfig(tile_n=32, threads_per_row=4, ell_width="quartile", step=4)


def test_hyb_keeps_three_quarters_of_the_rows_whole() -> None:
    matrix = matrices()["few_long_rows"]
    problem = SpmmProblem(*matrix.shape, 32)
    longest = FAMILY.pack(problem, UspmmVecConfig(tile_n=32, threads_per_row=4), matrix)
    packed = FAMILY.pack(problem, hyb_config(), matrix)
    assert packed.nbytes < longest.nbytes / 3
    lengths = np.diff(matrix.row_offsets)
    rests = np.diff(packed.arrays["rest_offsets"])
    width = packed.sizes["steps"] * 4
    np.testing.assert_array_equal(rests, np.maximum(lengths - width, 0))
    assert np.count_nonzero(rests) <= lengths.size / 4


def test_uniform_rows_have_no_rest() -> None:
    matrix = matrices()["uniform_rows"]
    packed = FAMILY.pack(SpmmProblem(*matrix.shape, 32), hyb_config(), matrix)
    assert not np.diff(packed.arrays["rest_offsets"]).any()


def asked(matrix: CsrMatrix, **changes: object) -> list[str]:
    problem, features = SpmmProblem(*matrix.shape, 32), Features.of(matrix)
    config = FAMILY.config(**{**FAMILY.heuristic(problem, features, device()).to_dict(), **changes})
    return FAMILY.broken_requirements(problem, features, config)


def test_hyb_is_for_rows_that_differ_but_not_wildly() -> None:
    even, moderate, wild = (random_rows(256, 512, 0.2, cov, 0) for cov in (0.0, 0.6, 2.0))
    assert not asked(even, ell_width="longest")
    assert "longest" in asked(moderate, ell_width="longest")[0]
    assert not asked(moderate, ell_width="quartile")
    assert "vary (CoV" in asked(wild, ell_width="quartile")[0]
    uniform = uniform_rows(64, 64, 20, 0)
    assert "needs rows longer" in asked(uniform, ell_width="quartile")[0]


def test_the_heuristic_pads_where_padding_is_small() -> None:
    assert not asked(matrices()["uniform_rows"])
    assert not asked(random_rows(256, 512, 0.2, 0.6, 0))


@pytest.mark.parametrize("k", [512, 4096, 20_000, 100_000])
@pytest.mark.parametrize("n", [1, 128, 16384])
def test_the_heuristic_fits_whatever_the_sizes(k: int, n: int) -> None:
    features = Features(1024, k, 1024 * 64, 64.0, 0.0, 64, 64 / k)
    for dtype in DType:
        problem = SpmmProblem(1024, k, n, dtype, Layout.COLUMN)
        config = FAMILY.heuristic(problem, features, device())
        assert not FAMILY.broken_constraints(problem, config, device())
        assert config.tile_n <= max(8, 2 * n)


def test_blocks_share_the_rows_equally() -> None:
    problem = SpmmProblem(1024, 1024, 1024, DType.FLOAT16, Layout.COLUMN)
    config = UspmmVecConfig(vec_size=2)  # 64 rows of a block, 16 tiles of columns
    row_blocks, column_blocks, _ = FAMILY.launch(problem, config, {"steps": 1}, H100).grid
    assert column_blocks == 16 and row_blocks == 8  # two turns each, on 132 multiprocessors
