r"""The contract tests' variants on a GPU, and at sizes that fill one: most of `make test-gpu` (gpu_ring.py).

The same tests on the emulator, which shows that they can run: -m gpu --gpu-device emulator -k adversarial.

Under compute-sanitizer (each call is checked, so a few variants are enough), after a run without it: NVRTC's processes
do not end in time under it, so that what they compile must be in the cache.

    compute-sanitizer --tool memcheck --error-exitcode 1 \
        python -m pytest -m gpu tests/test_contract_gpu.py -k adversarial
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
from gpu_ring import LOST
from patience import LONG, when_there_is_memory

from sparsegen import backends
from sparsegen.backends.executor import CompiledKernel, Executor, Toolchain
from sparsegen.errors import LaunchError
from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import power_law, random_rows
from sparsegen.operators import BlockAttentionProblem, Problem
from sparsegen.plan.binding import bind_variant
from sparsegen.render import render
from sparsegen.testing import products
from sparsegen.testing.kinds import CONVOLVED, batches, kinds
from sparsegen.testing.variants import Variant, sample
from sparsegen.verify.variants import worst_error

pytestmark = pytest.mark.gpu
VARIANTS = [variant for family in families().values() for variant in sample(family)]
PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # that share the tests out
PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % PROCESSES
MOST = {"images": 8, "kv_heads": 2, "group": 2}  # of a problem: the reference is computed on the host
THREADS = max(1, len(os.sched_getaffinity(0)) // PROCESSES)


class EveryLaneArrives:
    """A toolchain that defines SPARSEGEN_EVERY_LANE_ARRIVES before every source; see arriving_lanes.cuh.j2."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain

    def compile(self, family: str, entry: str, source: str, *, timeout: float) -> CompiledKernel:
        defined = f"#define SPARSEGEN_EVERY_LANE_ARRIVES\n{source}"
        return self._toolchain.compile(family, entry, defined, timeout=timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._toolchain, name)


class CompiledAhead:
    """A toolchain that compiles in threads what tests will ask for, while they run; in their order.

    Processes that share the tests out, and the cache, compile a share each. What no thread has begun when a test asks
    for it is compiled for the test.
    """

    def __init__(self, toolchain: Toolchain, variants: Sequence[Variant]) -> None:
        self._toolchain = toolchain
        self._pool = ThreadPoolExecutor(THREADS)
        mine = {v.source: v for v in variants[PROCESS::PROCESSES]}
        self._ahead = {source: self._compiling(v.family, source) for source, v in mine.items()}

    def _compiling(self, family: AnyFamily, source: str) -> Future[CompiledKernel]:
        return self._pool.submit(self._toolchain.compile, family.name, family.entry, source, timeout=LONG)

    def compile(self, family: str, entry: str, source: str) -> CompiledKernel:
        ahead = self._ahead.get(source)
        if ahead is not None and not ahead.cancel():
            return ahead.result()
        return self._toolchain.compile(family, entry, source, timeout=LONG)

    def together(self, sources: Sequence[tuple[AnyFamily, str]]) -> None:
        """Compile several at once, if not before what was submitted."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda one: self.compile(one[0].name, one[0].entry, one[1]), sources))

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._toolchain, name)


@pytest.fixture(scope="module")
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    executor = backends.open_executor(backends.find_device(request.config.option.gpu_device))
    yield executor
    if LOST not in request.config.stash:
        executor.close()


@pytest.fixture(autouse=True)
def noticed_if_lost(request: pytest.FixtureRequest, executor: Executor) -> Iterator[None]:
    """After a fault every call of this process fails: the ring goes on in another one."""
    yield
    try:
        executor.synchronize()
    except LaunchError as error:
        request.config.stash[LOST] = str(error)


@pytest.fixture(scope="module")
def toolchain(request: pytest.FixtureRequest, executor: Executor) -> Iterator[CompiledAhead]:
    """The toolchain, which compiles the variants of the selected tests in the background."""
    toolchain = backends.toolchain(executor.device)
    if request.config.getoption("--every-lane-arrives"):
        toolchain = cast(Toolchain, EveryLaneArrives(toolchain))
    specs = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = [spec.params["variant"] for spec in specs if spec and "variant" in spec.params]
    ahead = CompiledAhead(toolchain, wanted)
    yield ahead
    ahead.close()


@cache
def at_size(problem_type: type[Problem]) -> tuple[CsrMatrix, CsrMatrix]:
    """Matrices that keep all of a device busy; small ones for problems with many images, and for attention, of whose
    places one thread of the host computes two to eight million a second.
    """
    if problem_type in CONVOLVED:
        return random_rows(80, 56, 0.15, 0.5, 1), power_law(41, 67, 0.1, 2)
    if issubclass(problem_type, BlockAttentionProblem):
        return random_rows(1024, 768, 0.15, 0.5, 1), power_law(1000, 1400, 0.05, 2)
    return random_rows(2048, 1536, 0.15, 0.5, 1), power_law(3000, 4096, 0.02, 2)


def problems_at_size(family: AnyFamily, size: int) -> Iterator[tuple[Problem, CsrMatrix]]:
    """Every kind of problem that the family computes, with dense sizes of this one, at most those of MOST."""
    for kind in (*kinds(family, random.Random(0)), *batches(family, random.Random(0))):
        sizes = tuple((name, min(size, MOST.get(name, size))) for name, _ in kind.sizes)
        each = "groups" in dict(kind.parameters)  # a filter for each channel
        sized = kind.with_sizes(size) if each else replace(kind, sizes=sizes)
        for matrix in at_size(kind.problem_type):
            problem = sized.problem(matrix)
            if family.computes(problem):
                yield problem, matrix


def error_of(
    family: AnyFamily,
    problem: Problem,
    config: Any,
    matrix: CsrMatrix,
    executor: Executor,
    toolchain: CompiledAhead,
    seed: int,
) -> float:
    """Largest error over its bound, of a call on random inputs into memory that is filled with NaN."""

    def found() -> float:
        variant = bind_variant(config, problem, matrix, executor, cast(Toolchain, toolchain))
        return worst_error(variant, problem, matrix, np.random.default_rng(seed))

    return when_there_is_memory(found)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_adversarial_matrices(variant: Variant, executor: Executor, toolchain: CompiledAhead) -> None:
    when_there_is_memory(lambda: products.results_are_right_on(variant, executor, cast(Toolchain, toolchain)))


@pytest.mark.parametrize("family", families().values(), ids=families())
@pytest.mark.parametrize("size", [1, 49, 256])
def test_heuristics_at_size(
    family: AnyFamily, size: int, executor: Executor, toolchain: CompiledAhead
) -> None:
    """Every kind of problem, with dense sizes that vectors divide and that they do not."""
    cases = []
    for problem, matrix in problems_at_size(family, size):
        config = family.heuristic(problem, problem.features(matrix), executor.device)
        assert family.broken_constraints(problem, config, executor.device) == []
        cases.append((problem, config, matrix))
    toolchain.together([(family, source) for source in {render(family, p, config) for p, config, _ in cases}])
    for problem, config, matrix in cases:
        seed = products.fresh_seed()
        error = error_of(family, problem, config, matrix, executor, toolchain, seed)
        assert error <= 1, f"{problem} by {config}, seed {seed}"
