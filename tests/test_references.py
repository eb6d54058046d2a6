"""Both judges say the same of right, wrong and unwritten results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sparsegen import backends, references
from sparsegen.errors import SparsegenError
from sparsegen.executor import Executor
from sparsegen.generators import random_rows
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.references import DeviceJudge, HostJudge


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    opened = backends.open_executor(backends.find_device(request.param))
    yield opened
    opened.close()


MATRIX = random_rows(24, 40, 0.3, 0.6, 3)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.BIAS_RELU])
def test_the_judges_agree(executor: Executor, dtype: DType, layout: Layout, epilogue: Epilogue) -> None:
    problem = SpmmProblem(24, 40, 9, dtype, layout, epilogue)
    operands = problem.random_operands(np.random.default_rng(0))
    judges = [kind(problem, MATRIX, operands, executor) for kind in (HostJudge, DeviceJudge)]
    exact = problem.reference(MATRIX, operands).exact
    nudged = exact.copy()
    nudged[3, 5] += 0.3
    unwritten = problem.dtype.to_storage(exact)
    unwritten.view(np.uint8).reshape(-1)[:4] = 0xFF
    for stored, is_right in (
        (dtype.to_storage(exact), True),
        (dtype.to_storage(nudged), False),
        (unwritten, False),
    ):
        result = executor.upload(np.ascontiguousarray(stored))
        host, device = (judge.worst_error(result) for judge in judges)
        assert (host <= 1) == is_right
        assert device == pytest.approx(host, rel=1e-4)
        if not is_right:
            told = [judge.explain(result) for judge in judges]
            assert (
                told[0].split(";")[0]
                == told[1].split(";")[0]
                == f"{told[0].split()[0]} of 216 values are wrong"
            )


def test_an_overflow_of_float16_is_right_where_the_exact_value_overflows(executor: Executor) -> None:
    matrix = MATRIX.with_values(np.full(MATRIX.nnz, 60000, dtype=np.float32))
    problem = SpmmProblem(24, 40, 9, DType.FLOAT16)
    operands = {"b": np.full((40, 9), 100, dtype=np.float16)}
    stored = problem.dtype.to_storage(problem.reference(matrix, operands).exact)
    assert np.isinf(stored).any()
    for kind in (HostJudge, DeviceJudge):
        assert kind(problem, matrix, operands, executor).worst_error(executor.upload(stored)) <= 1


def test_a_device_that_multiplies_wrongly_judges_nothing(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = SpmmProblem(24, 40, 9)
    operands = problem.random_operands(np.random.default_rng(0))

    def other_values(matrix: Any) -> Any:
        return matrix + np.float32(1) if matrix.dtype == np.float32 else matrix

    monkeypatch.setattr(references, "empty_as_one", other_values)
    with pytest.raises(SparsegenError, match="float64 product is wrong"):
        DeviceJudge(problem, MATRIX, operands, executor)


def test_nothing_to_judge(executor: Executor) -> None:
    problem = SpmmProblem(0, 40, 9)
    matrix = random_rows(1, 40, 0.0, 0.0, 0).__class__(
        (0, 40), np.zeros(1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32)
    )
    operands = problem.random_operands(np.random.default_rng(0))
    for kind in (HostJudge, DeviceJudge):
        assert kind(problem, matrix, operands, executor).worst_error(executor.allocate(1)) == 0
