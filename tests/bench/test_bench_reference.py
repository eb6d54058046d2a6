"""A row's reference is kept as files and held against contenders, each with its own bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends import emulator_device, open_executor
from sparsegen.bench.case import Case, Operator
from sparsegen.bench.dense_matrix import DenseMatrix
from sparsegen.bench.parcel import Parcel, ParcelMaker
from sparsegen.bench.patterns import Independent
from sparsegen.bench.reference import bound_for, keep_reference, kept_reference
from sparsegen.bench.results import Kind
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.errors import SuiteError
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, Layout
from sparsegen.settings import Settings
from sparsegen.verify.bounds import ErrorBound, worst_error


def parcel(
    folder: Path, operator: Operator, dtype: DType, layout: Layout = Layout.COLUMN, batch: int = 1
) -> Parcel:
    m, k, n = 40, 30, 9
    columns = k if operator is Operator.SPMM else n
    pattern = Independent(m, columns, 0.6)
    case = Case("t", "t", operator, m, k, n, (dtype,), layout, pattern, "", batch)
    return ParcelMaker(folder).make(case, dtype)


@pytest.mark.parametrize(
    ("operator", "layout", "dtype", "batch"),
    [
        (Operator.SPMM, Layout.ROW, DType.FLOAT32, 1),
        (Operator.SPMM, Layout.COLUMN, DType.BFLOAT16, 1),
        (Operator.SPMM, Layout.ROW, DType.FLOAT16, 3),
        (Operator.SDDMM, Layout.COLUMN, DType.FLOAT16, 1),
        (Operator.SDDMM, Layout.COLUMN, DType.FLOAT32, 3),
    ],
)
def test_what_was_kept_comes_back(
    operator: Operator, layout: Layout, dtype: DType, batch: int, tmp_path: Path
) -> None:
    row = parcel(tmp_path, operator, dtype, layout, batch)
    assert keep_reference(row, open_executor(emulator_device())) == "", "computed on the host"
    kept = kept_reference(row)
    operands = {name: np.asarray(row.operand(name)) for name in row.task.operand_shapes}
    reference = row.task.problem.reference(row.matrix(), operands)
    np.testing.assert_array_equal(kept.exact, reference.exact)
    np.testing.assert_allclose(kept.magnitude, reference.magnitude, rtol=1e-6)
    np.testing.assert_array_equal(kept.terms, reference.terms)
    right = dtype.to_storage(reference.exact)
    assert worst_error(kept, right) == pytest.approx(worst_error(reference, right), rel=1e-5)
    right.view(np.uint8).reshape(-1)[-4:] = 0xFF
    assert worst_error(kept, right) == np.inf


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
    row = parcel(tmp_path, Operator.SPMM, dtype)
    executor = open_executor(emulator_device())
    dense = dtype.to_storage(row.matrix().to_scipy().toarray())
    for by_rows in (True, False):
        wanted = np.ascontiguousarray(dense if by_rows else dense.T)
        found = np.empty_like(wanted)
        executor.download(DenseMatrix(Workbench(row, executor)).stored(by_rows), found)
        np.testing.assert_array_equal(found, wanted)


def test_sddmm_takes_its_second_operand_column_major() -> None:
    with pytest.raises(SuiteError, match="column"):
        Task(Operator.SDDMM, 2, 2, 2, DType.FLOAT32, Layout.ROW)
