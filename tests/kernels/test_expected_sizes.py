"""Launch geometry from features alone, held against that of the packed matrix."""

from __future__ import annotations

import math

import pytest
from tuning_samples import H100

from sparsegen.kernels import families_of
from sparsegen.kernels.base import AnyFamily
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import power_law, random_uniform
from sparsegen.operators import (
    DType,
    Problem,
    SddmmProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)

M, K = 1024, 768
MATRICES = {
    "uniform": random_uniform(M, K, 0.1, 1),
    "power law": power_law(M, K, 0.05, 2),
}
PROBLEMS: tuple[Problem, ...] = (
    SpmmProblem(M, K, 128, DType.FLOAT16),
    SpmmProblem(M, K, 8, DType.FLOAT16),
    SpmmProblem(M, K, 64, DType.FLOAT32),
    SddmmProblem(M, K, 64, DType.FLOAT32),
    SparseAttentionProblem(M, K, 64, DType.FLOAT16, batch=2),
    SoftmaxProblem(M, K, DType.FLOAT32),
)
CASES = [
    pytest.param(each, problem, matrix, id=f"{each.name}-{problem.dtype}-{name}")
    for problem in PROBLEMS
    for each in families_of(problem.operator)
    if each.computes(problem)
    for name, matrix in MATRICES.items()
]


@pytest.mark.parametrize(("each", "problem", "matrix"), CASES)
def test_as_many_blocks_as_the_packed_matrix_takes(
    each: AnyFamily, problem: Problem, matrix: CsrMatrix
) -> None:
    features = problem.features(matrix)
    config = each.heuristic(problem, features, H100)
    expected = each.launch(problem, config, each.expected_sizes(problem, features, config), H100)
    packed = each.launch(problem, config, each.pack(problem, config, matrix).sizes, H100)
    assert expected.block == packed.block
    assert expected.shared_memory_bytes == packed.shared_memory_bytes
    assert 0.6 < math.prod(expected.grid) / math.prod(packed.grid) < 1.7


def test_the_analytic_time_is_of_the_config_that_is_asked_for() -> None:
    """The heuristic's is `predicted_us`; smaller tiles load more and take longer."""
    problem = SpmmProblem(4096, 4096, 4096, DType.FLOAT16)
    features = problem.features(random_uniform(4096, 4096, 0.05, 3))
    mma = next(f for f in families_of("spmm") if f.name == "mma_spmm")
    heuristic = mma.heuristic(problem, features, H100)
    assert mma.analytic_us(problem, features, heuristic, H100) == mma.predicted_us(problem, features, H100)
    small = mma.config(tile_m=16, tile_n=16, tile_k=32, warps_m=1, warps_n=1, warps_k=1, prefetch=1)
    assert mma.analytic_us(problem, features, small, H100) > 2 * mma.predicted_us(problem, features, H100)
