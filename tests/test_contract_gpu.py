"""The contract tests' variants on a GPU, and at sizes that fill one.

Under compute-sanitizer (each call is checked, so a few variants are enough):

    compute-sanitizer --tool memcheck --error-exitcode 1 \\
        python -m pytest -m gpu tests/test_contract_gpu.py -k adversarial
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from contract_cases import Variant, matrices, sample

from sparsegen import backends
from sparsegen.executor import Executor, Toolchain
from sparsegen.family import Family
from sparsegen.features import Features
from sparsegen.formats import CsrMatrix
from sparsegen.generators import power_law, random_rows
from sparsegen.kernels import families
from sparsegen.launching import PreparedVariant
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem

pytestmark = pytest.mark.gpu
VARIANTS = [variant for name in families() for variant in sample(name)]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    executor = backends.open_executor(backends.find_device("cuda"))
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def toolchain(executor: Executor) -> Toolchain:
    """The toolchain, with all sampled variants compiled."""
    toolchain = backends.toolchain(executor.device)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda v: toolchain.compile(v.family.name, v.family.entry, v.source), VARIANTS))
    return toolchain


def worst_error(
    family: Family[Any, Any],
    problem: SpmmProblem,
    config: Any,
    matrix: CsrMatrix,
    executor: Executor,
    toolchain: Toolchain,
) -> float:
    """Largest error over its bound, of a call on fresh inputs into memory that is filled with NaN."""
    operands = problem.random_operands(np.random.default_rng())
    prepared = PreparedVariant(family, problem, config, matrix, executor, toolchain)
    inputs = [executor.upload(operands[spec.name]) for spec in problem.operands]
    output = executor.allocate(problem.result.nbytes)
    executor.fill(output, 0xFF)
    prepared.bound()(0, *(buffer.address for buffer in (*inputs, output)))
    executor.synchronize()
    result = np.empty(problem.result.shape, dtype=problem.dtype.storage)
    executor.download(output, result)
    return problem.reference(matrix, operands, threads=8).worst_error(result)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_adversarial_matrices(variant: Variant, executor: Executor, toolchain: Toolchain) -> None:
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        if variant.family.broken_constraints(problem, variant.config, executor.device):
            continue
        assert worst_error(variant.family, problem, variant.config, matrix, executor, toolchain) <= 1, name


@pytest.mark.parametrize("family", families().values(), ids=families())
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("n", [1, 49, 256])
def test_guesses_at_size(
    family: Family[Any, Any], layout: Layout, dtype: DType, n: int, executor: Executor, toolchain: Toolchain
) -> None:
    for matrix in (random_rows(2048, 1536, 0.15, 0.5, 1), power_law(3000, 4096, 0.02, 2)):
        problem = SpmmProblem(*matrix.shape, n, dtype, layout, Epilogue.BIAS_RELU)
        config = family.guess(problem, Features.of(matrix), executor.device)
        assert family.broken_constraints(problem, config, executor.device) == []
        assert worst_error(family, problem, config, matrix, executor, toolchain) <= 1
