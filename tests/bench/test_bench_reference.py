"""A row's reference is kept as files and held against baselines, each with its own bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends import emulator_device, open_executor
from sparsegen.bench.baseline.inputs import Inputs, InputsMaker, stored_result
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines.cublas import DenseMatrix
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Independent
from sparsegen.bench.results.results import Kind
from sparsegen.bench.run.reference import RowReference, bound_for
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmProblem,
    SoftmaxProblem,
    SpmmProblem,
)
from sparsegen.settings import Settings
from sparsegen.verify.bounds import ErrorBound, worst_error


def inputs(folder: Path, problem: Problem) -> Inputs:
    case = Case("t", "t", problem, (problem.dtype,), Independent(*problem.matrix_shape, 0.6), "")
    return InputsMaker(folder).make(case, problem.dtype)


OWN = {"batch": 3, "item_values": ItemValues.OWN}


@pytest.mark.parametrize(
    "problem",
    [
        SpmmProblem(40, 30, 9),
        SpmmProblem(40, 30, 9, DType.BFLOAT16, Layout.COLUMN),
        SpmmProblem(40, 30, 9, DType.FLOAT16, batch=3),
        SpmmProblem(40, 30, 9, DType.BFLOAT16, epilogue=Epilogue.BIAS_RESIDUAL),
        SpmmProblem(40, 30, 9, DType.FLOAT16, **OWN),  # type: ignore[arg-type]
        SddmmProblem(40, 9, 30, DType.FLOAT16),
        SddmmProblem(40, 9, 30, batch=3),
        SoftmaxProblem(40, 30, DType.FLOAT16, batch=2),
    ],
    ids=str,
)
def test_results_are_held_against_it(problem: Problem, tmp_path: Path) -> None:
    row, dtype = inputs(tmp_path, problem), problem.dtype
    held, ours = RowReference(row, open_executor(emulator_device())), ErrorBound.ours(problem.dtype)
    assert held.source == "", "computed on the host"
    operands = {name: np.asarray(operand) for name, operand in row.operands().items()}
    assert ("values" in operands) == (problem.value_sets > 1)
    reference = problem.reference(row.matrix(), operands)
    file = row.store_result(dtype.to_storage(reference.exact))
    right = np.array(stored_result(file))
    assert held.worst_error(right, ours) == pytest.approx(worst_error(reference, right), rel=1e-5)
    assert held.worst_error(right, ours) <= 1
    right.view(np.uint8).reshape(-1)[-4:] = 0xFF
    assert held.worst_error(right, ours) == np.inf
    assert held.worst_error(right.reshape(-1)[:-1], ours) == np.inf, "another shape"
    assert row.store_result(right) == file, "the next one takes its place"


def test_everyone_has_a_bound() -> None:
    float32, half = DType.FLOAT32, DType.FLOAT16
    assert bound_for(Kind.OURS, Arithmetic.FLOAT16, half) == ErrorBound.ours(half)
    for kind in (Kind.DENSE, Kind.SPARSE):
        assert bound_for(kind, Arithmetic.FLOAT16, half) == ErrorBound.vendors(half)
        assert bound_for(kind, Arithmetic.FLOAT32, float32) == ErrorBound.ours(float32)
        assert bound_for(kind, Arithmetic.TF32, float32) == ErrorBound.tf32()


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_dense_matrices_are_made_on_the_device(
    dtype: DType, tmp_path: Path, emulator_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    row = inputs(tmp_path, SpmmProblem(40, 30, 9, dtype))
    executor = open_executor(emulator_device())
    dense = dtype.to_storage(row.matrix().to_scipy().toarray())
    for by_rows in (True, False):
        wanted = np.ascontiguousarray(dense if by_rows else dense.T)
        found = np.empty_like(wanted)
        executor.download(DenseMatrix(Workbench(row, executor)).stored(by_rows), found)
        np.testing.assert_array_equal(found, wanted)
