"""Both judges say the same of right, wrong and unwritten results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.errors import SparsegenError
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.verify.device_references import products, rows
from sparsegen.verify.references import DeviceJudge, HostJudge, judge


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()


MATRIX = random_rows(24, 40, 0.3, 0.6, 3)


PROBLEMS: list[Problem] = [
    *(
        SpmmProblem(24, 40, 9, dtype, layout, epilogue)
        for dtype in DType
        for layout in Layout
        for epilogue in Epilogue
    ),
    *(SddmmProblem(24, 40, 13, dtype, epilogue) for dtype in DType for epilogue in SddmmEpilogue),
    SpmmProblem(24, 40, 9, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RESIDUAL, batch=3),
    SpmmProblem(24, 40, 9, batch=3, item_values=ItemValues.OWN),
    SddmmProblem(24, 40, 13, DType.BFLOAT16, SddmmEpilogue.SCALE, batch=3),
    *(SoftmaxProblem(24, 40, dtype) for dtype in DType),
    *(SoftmaxBackwardProblem(24, 40, dtype) for dtype in DType),
    *(SparseAttentionProblem(24, 40, 8, dtype) for dtype in DType),
    SoftmaxProblem(24, 40, DType.BFLOAT16, batch=3),
    SparseAttentionProblem(24, 40, 8, DType.FLOAT16, batch=3),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_judges_agree(executor: Executor, problem: Problem) -> None:
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
    judges = [kind(problem, MATRIX, operands, executor) for kind in (HostJudge, DeviceJudge)]
    exact = problem.reference(MATRIX, operands).exact
    nudged = exact.copy()
    nudged[(2, 2, 5)[-exact.ndim :]] += 0.3
    unwritten = problem.dtype.to_storage(exact)
    unwritten.view(np.uint8).reshape(-1)[:4] = 0xFF
    for stored, is_right in (
        (problem.dtype.to_storage(exact), True),
        (problem.dtype.to_storage(nudged), False),
        (unwritten, False),
    ):
        result = executor.upload(np.ascontiguousarray(stored))
        host, device = (judge.worst_error(result) for judge in judges)
        assert (host <= 1) == is_right
        assert device == pytest.approx(host, rel=1e-4)
        if not is_right:
            told = [judge.explain(result).split(";") for judge in judges]
            assert told[0][0] == told[1][0] == f"{told[0][0].split()[0]} of {exact.size} values are wrong"
            assert f"worst is {problem.result(MATRIX.nnz).name}[" in told[0][1]


@pytest.mark.gpu
def test_a_gpu_judges_what_it_can() -> None:
    executor = backends.open_executor(backends.find_device("cuda"))
    for problem, kind in (
        (SpmmProblem(24, 40, 9), DeviceJudge),
        (SddmmProblem(24, 40, 9), DeviceJudge),
        (SoftmaxProblem(24, 40), DeviceJudge),
        (SparseAttentionProblem(24, 40, 8), DeviceJudge),
    ):
        operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)
        assert isinstance(judge(problem, MATRIX, operands, executor), kind)
    executor.close()


def test_an_overflow_of_float16_is_right_where_the_exact_value_overflows(executor: Executor) -> None:
    matrix = MATRIX.with_values(np.full(MATRIX.nnz, 60000, dtype=np.float32))
    problem = SpmmProblem(24, 40, 9, DType.FLOAT16)
    operands = {"b": np.full((40, 9), 100, dtype=np.float16)}
    stored = problem.dtype.to_storage(problem.reference(matrix, operands).exact)
    assert np.isinf(stored).any()
    for kind in (HostJudge, DeviceJudge):
        assert kind(problem, matrix, operands, executor).worst_error(executor.upload(stored)) <= 1


WRONGLY = [
    SpmmProblem(24, 40, 9),
    SddmmProblem(24, 40, 9),
    SoftmaxProblem(24, 40),
    SparseAttentionProblem(24, 40, 8),
]


@pytest.mark.parametrize("problem", WRONGLY, ids=str)
def test_a_device_that_computes_wrongly_judges_nothing(
    problem: Problem, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = problem.random_operands(np.random.default_rng(0), MATRIX.nnz)

    def other_values(array: Any) -> Any:
        other = np.arange(array.size, dtype=np.float32).reshape(array.shape)
        return array + other if array.dtype == np.float32 else array

    for module in (products, rows):
        monkeypatch.setattr(module, "empty_as_one", other_values)
    with pytest.raises(SparsegenError, match="float64 result is wrong"):
        DeviceJudge(problem, MATRIX, operands, executor)


@pytest.mark.parametrize(
    "problem", [SpmmProblem(0, 40, 9), SddmmProblem(0, 40, 9), SoftmaxProblem(0, 40)], ids=str
)
def test_nothing_to_judge(problem: Problem, executor: Executor) -> None:
    matrix = random_rows(1, 40, 0.0, 0.0, 0).__class__(
        (0, 40), np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
    )
    operands = problem.random_operands(np.random.default_rng(0), 0)
    for kind in (HostJudge, DeviceJudge):
        assert kind(problem, matrix, operands, executor).worst_error(executor.allocate(1)) == 0
