"""Settings that a paper fixes are those of its text, and valid where the paper used them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tuning_samples import H100

from sparsegen.kernels import families, family
from sparsegen.kernels.base import Family
from sparsegen.operators import (
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Layout,
    Problem,
    SddmmProblem,
    SddProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.operators.masked.masked_problem import Block
from sparsegen.operators.sparse_network import Activation

# Muralidharan, MLSys 2023, section 4.1: (N_warp, V_size) of USpMM and USpMM-Vec; section 4.3 has them the other way
# round. A block has NumWarps = N_warp * V_size warps (section 3), each thread V_size columns.
UNIFORM = {(2, 8), (1, 8)}
COLUMN_MAJOR = SpmmProblem(1024, 1024, 1024, dtype=DType.FLOAT16, layout=Layout.COLUMN)


def published(name: str, problem: Problem) -> list[dict[str, Any]]:
    """Published settings as dictionaries; every one is valid."""
    configs = family(name).published(problem)
    for config in configs:
        family(name).require_valid(problem, config, H100)
    return [config.to_dict() for config in configs]


def only(name: str, problem: Problem, *keys: str) -> tuple[Any, ...]:
    """Values of the one config that is published for a problem."""
    (config,) = published(name, problem)
    return tuple(config[key] for key in keys)


def test_uspmm_has_the_papers_settings() -> None:
    assert {(c["nwarp"], c["vsize"]) for c in published("uspmm", COLUMN_MAJOR)} == UNIFORM


def test_uspmm_vec_has_the_papers_settings() -> None:
    configs = published("uspmm_vec", COLUMN_MAJOR)
    assert {(c["k_splits"] // c["tile_n"], c["tile_n"]) for c in configs} == UNIFORM
    assert {(c["vec_size"], c["threads_per_row"], c["step"], c["row_warps"]) for c in configs} == {
        (2, 1, 1, 1)
    }
    assert {(c["staging"], c["ell_width"], c["index_bits"]) for c in configs} == {("gather", "longest", 32)}


# Gale et al., SC 2020, section VII: "For SpMM we use a kernel selection heuristic where we select the n-dimension tile
# size to be N, rounded up to a power of 2, up to a maximum of 64. [...] For both kernels we use the widest vector
# memory operations possible."
@pytest.mark.parametrize(
    ("n", "dtype", "tile_n", "vector"),
    [
        (16, DType.FLOAT32, 16, 4),
        (32, DType.FLOAT32, 32, 4),
        (48, DType.FLOAT32, 64, 4),
        (128, DType.FLOAT32, 64, 4),  # "up to a maximum of 64"
        (6, DType.FLOAT32, 8, 2),
        (50, DType.FLOAT32, 64, 2),
        (61, DType.FLOAT32, 64, 1),
        (128, DType.FLOAT16, 64, 8),
        (12, DType.FLOAT16, 16, 4),
    ],
)
def test_csr_spmm_follows_the_papers_rule(n: int, dtype: DType, tile_n: int, vector: int) -> None:
    problem = SpmmProblem(2048, 1024, n, dtype)
    assert only("csr_spmm", problem, "tile_n", "dense_vector_width") == (tile_n, vector)
    # V-B: reverse offset memory alignment and subwarp tiling, of a warp; V-C2: rows sorted by length; V-D2: a residue
    # that is unrolled; V: nonzeros through shared memory.
    assert only("csr_spmm", problem, "row_alignment", "row_order", "residue_unroll", "staging") == (
        "reverse_offset", "sorted", True, "shared",
    )  # fmt: skip
    threads, rows, splits = only("csr_spmm", problem, "threads_per_row", "rows_per_block", "row_splits")
    assert threads * rows == 32 and splits == 1


def test_csr_spmm_prescales_indices_but_16_bit_ones() -> None:
    # Section V-D3: "we do not perform our index pre-scaling optimization for mixed-precision kernels", whose indices
    # have 16 bits.
    for dtype, expected in ((DType.FLOAT32, (True, 32)), (DType.FLOAT16, (False, 16))):
        assert only("csr_spmm", SpmmProblem(64, 64, 64, dtype), "prescale_indices", "index_bits") == expected


def test_csr_spmm_has_a_rule_for_row_major_operands_alone() -> None:
    # Section IV-C: "we store dense matrices in row-major layout".
    assert not published("csr_spmm", COLUMN_MAJOR)


@pytest.mark.parametrize(("k", "vector"), [(128, 4), (50, 2), (31, 1)])
def test_csr_sddmm_follows_the_papers_rule(k: int, vector: int) -> None:
    # Section VII: "For SDDMM we use an n-dimension tile size of 32", and the widest loads; VI-A: warp shuffles.
    keys = ("strip", "vector_width", "reduction", "row_order")
    assert only("csr_sddmm", SddmmProblem(256, 512, k), *keys) == (32, vector, "shuffle", "sorted")


def test_csr_sddmm_is_published_in_single_precision() -> None:
    assert not published("csr_sddmm", SddmmProblem(256, 512, 128, DType.FLOAT16))  # Table I has no other


def test_staged_network_has_the_papers_minibatch() -> None:
    # Hidayetoglu et al., HPEC 2020, section III-A1: a MINIBATCH of 12 was chosen. III-B2: 16-bit map and windex, which
    # `staged_network` always has.
    keys = ("minibatch", "staging", "order", "vector", "first_check")
    problem = SparseNetworkProblem(120 * 1024, 1024 + 3, 60000, DType.FLOAT32)
    assert only("staged_network", problem, *keys) == (12, "neurons", "columns", 1, 0)
    # Section IV-C: "During the inference, we prune the inactive features".
    dying = replace(problem, activation=Activation.DYING_RELU)
    assert only("staged_network", dying, *keys) == (12, "neurons", "columns", 1, 1)


# Lo, section 4.1: "the block size of SparseDrop is fixed to M_blk = 128, K_blk = 128"; section 3.3: products go along
# the contraction in halves of a block; section 5.1: software pipelining is future work.
MASKED = {
    "mma_dsd": DsdProblem(1024, 1024, 1024, dtype=DType.FLOAT16),
    "mma_dsd_transposed": DsdTransposedProblem(1024, 1024, 1024, dtype=DType.FLOAT16),
    "mma_sdd": SddProblem(1024, 1024, 1024, dtype=DType.FLOAT16),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_products_have_the_papers_blocks(name: str) -> None:
    assert only(name, MASKED[name], "tile_m", "step", "stages") == (128, 64, 2)


def test_masked_products_of_other_blocks_are_not_published() -> None:
    problem = DsdProblem(1024, 1024, 1024, dtype=DType.FLOAT16, block=Block(64, 64))
    assert not published("mma_dsd", problem)


def test_no_other_family_names_published_settings() -> None:
    # Shah and Nair's report names no setting of a kernel, and its kernels (im2col, product, col2im) are a baseline of
    # `bench`, torch-im2col. A family that gets published settings gets a test here.
    found = {name for name, one in families().items() if type(one).published is not Family.published}
    assert found == {"uspmm", "uspmm_vec", "csr_spmm", "csr_sddmm", "staged_network", *MASKED}
