"""The contract tests' variants on a GPU, and at sizes that fill one.

Under compute-sanitizer (each call is checked, so a few variants are enough), after a run without it: NVRTC's processes
do not end in time under it, so that what they compile must be in the cache.

    compute-sanitizer --tool memcheck --error-exitcode 1 \\
        python -m pytest -m gpu tests/test_contract_gpu.py -k adversarial
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
from contract_cases import Variant, batches, kinds, matrices, sample

from sparsegen import backends
from sparsegen.backends.executor import CompiledKernel, Executor, Toolchain
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import power_law, random_rows
from sparsegen.operators import Problem
from sparsegen.plan.binding import bind_variant
from sparsegen.verify.variants import worst_error

pytestmark = pytest.mark.gpu
VARIANTS = [variant for name in families() for variant in sample(name)]


class EveryLaneArrives:
    """A toolchain that defines SPARSEGEN_EVERY_LANE_ARRIVES before every source; see templates/lib/tile_ring.cuh.j2."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain

    def compile(self, family: str, entry: str, source: str) -> CompiledKernel:
        return self._toolchain.compile(family, entry, f"#define SPARSEGEN_EVERY_LANE_ARRIVES\n{source}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._toolchain, name)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    executor = backends.open_executor(backends.find_device("cuda"))
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def toolchain(request: pytest.FixtureRequest, executor: Executor) -> Toolchain:
    """The toolchain, with all variants of the selected tests compiled."""
    toolchain = backends.toolchain(executor.device)
    if request.config.getoption("--every-lane-arrives"):
        toolchain = cast(Toolchain, EveryLaneArrives(toolchain))
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [spec.params["variant"] for spec in specs if spec and "variant" in spec.params]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda v: toolchain.compile(v.family.name, v.family.entry, v.source), wanted))
    return toolchain


def error_of(
    family: AnyFamily,
    problem: Problem,
    config: Any,
    matrix: CsrMatrix,
    executor: Executor,
    toolchain: Toolchain,
) -> float:
    """Largest error over its bound, of a call on fresh inputs into memory that is filled with NaN."""
    variant = bind_variant(config, problem, matrix, executor, toolchain)
    return worst_error(variant, problem, matrix, np.random.default_rng())


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_adversarial_matrices(variant: Variant, executor: Executor, toolchain: Toolchain) -> None:
    for name in variant.matrices:
        matrix = matrices()[name]
        problem = variant.kind.problem(matrix)
        if variant.family.broken_constraints(problem, variant.config, executor.device):
            continue
        assert error_of(variant.family, problem, variant.config, matrix, executor, toolchain) <= 1, name


@pytest.mark.parametrize("family", families().values(), ids=families())
@pytest.mark.parametrize("size", [1, 49, 256])
def test_heuristics_at_size(family: AnyFamily, size: int, executor: Executor, toolchain: Toolchain) -> None:
    """Every kind of problem, with dense sizes that vectors divide and that they do not."""
    for kind in (*kinds(family, random.Random(0)), *batches(family, random.Random(0))):
        for matrix in (random_rows(2048, 1536, 0.15, 0.5, 1), power_law(3000, 4096, 0.02, 2)):
            problem = kind.with_sizes(size).problem(matrix)
            if not family.computes(problem):
                continue
            config = family.heuristic(problem, problem.features(matrix), executor.device)
            assert family.broken_constraints(problem, config, executor.device) == []
            assert error_of(family, problem, config, matrix, executor, toolchain) <= 1, kind
