"""Settings that a paper fixes are those of its text, and valid where the paper used them."""

from __future__ import annotations

import pytest
from tuning_samples import H100

from sparsegen.kernels import family
from sparsegen.kernels.spmm.uspmm import UspmmConfig
from sparsegen.kernels.spmm.uspmm_vec import UspmmVecConfig
from sparsegen.operators import DType, Layout, SpmmProblem

# Muralidharan, MLSys 2023, section 4.1: (N_warp, V_size) of USpMM and USpMM-Vec; section 4.3 has them the other way
# round. A block has NumWarps = N_warp * V_size warps (section 3), each thread V_size columns.
UNIFORM = {(2, 8), (1, 8)}
COLUMN_MAJOR = SpmmProblem(1024, 1024, 1024, dtype=DType.FLOAT16, layout=Layout.COLUMN)


def test_uspmm_has_the_papers_settings() -> None:
    assert {(c.nwarp, c.vsize) for c in family("uspmm").published() if isinstance(c, UspmmConfig)} == UNIFORM


def test_uspmm_vec_has_the_papers_settings() -> None:
    configs = [c for c in family("uspmm_vec").published() if isinstance(c, UspmmVecConfig)]
    assert {(c.k_splits // c.tile_n, c.tile_n) for c in configs} == UNIFORM
    assert {(c.vec_size, c.threads_per_row, c.step, c.row_warps) for c in configs} == {(2, 1, 1, 1)}
    assert {(c.staging, c.ell_width, c.index_bits) for c in configs} == {("gather", "longest", 32)}


@pytest.mark.parametrize("name", ["uspmm", "uspmm_vec"])
def test_they_are_valid_where_the_paper_used_them(name: str) -> None:
    for config in family(name).published():
        family(name).require_valid(COLUMN_MAJOR, config, H100)
