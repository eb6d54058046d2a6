"""Expected results: host and device agree with the operators' own, and bounds tell right from wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends import emulator_device, open_executor
from sparsegen.bench.case import Case, Operator
from sparsegen.bench.device_code import DenseMatrix, expected_on_device
from sparsegen.bench.expected import Expected, expected_on_host
from sparsegen.bench.parcel import Parcel, ParcelMaker
from sparsegen.bench.patterns import Independent
from sparsegen.bench.referee import check_against_host, element
from sparsegen.bench.results import Arithmetic
from sparsegen.bench.task import Task
from sparsegen.bench.workbench import Workbench
from sparsegen.errors import SparsegenError, SuiteError
from sparsegen.operators import DType, Layout
from sparsegen.settings import Settings


def parcel(
    folder: Path, operator: Operator, dtype: DType, layout: Layout = Layout.COLUMN, batch: int = 1
) -> Parcel:
    m, k, n = 40, 30, 9
    columns = k if operator is Operator.SPMM else n
    pattern = Independent(m, columns, 0.6)
    case = Case("t", "t", operator, m, k, n, (dtype,), layout, pattern, "", batch)
    return ParcelMaker(folder).make(case, dtype)


SOME = [
    (Operator.SPMM, Layout.ROW, DType.FLOAT32),
    (Operator.SPMM, Layout.COLUMN, DType.BFLOAT16),
    (Operator.SDDMM, Layout.COLUMN, DType.FLOAT16),
]


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("layout", Layout)
def test_the_host_agrees_with_the_problem(dtype: DType, layout: Layout, tmp_path: Path) -> None:
    row = parcel(tmp_path, Operator.SPMM, dtype, layout)
    expected = expected_on_host(row)
    reference = row.task.problem.reference(row.matrix(), {"b": np.asarray(row.operand("b"))})
    np.testing.assert_allclose(expected.exact, reference.exact, rtol=1e-14)
    right = dtype.to_storage(reference.exact)
    mine = expected.worst_error(right, dtype, arithmetic=Arithmetic(dtype.value), is_ours=True)
    assert mine == pytest.approx(reference.worst_error(right), rel=1e-5)


@pytest.mark.parametrize("operator", Operator)
def test_each_item_of_a_batch_counts(operator: Operator, tmp_path: Path) -> None:
    row = parcel(tmp_path, operator, DType.FLOAT32, batch=3)
    expected_on_host(row).keep(row)
    expected = Expected.of(row)
    operands = {name: np.asarray(row.operand(name)) for name in row.task.operand_shapes}
    reference = row.task.problem.reference(row.matrix(), operands)
    np.testing.assert_allclose(expected.exact, reference.exact, rtol=1e-12, atol=1e-12)
    kind = {"arithmetic": Arithmetic.FLOAT32, "is_ours": True}
    right = reference.exact.astype(np.float32)
    assert expected.worst_error(right, DType.FLOAT32, **kind) <= 1  # type: ignore[arg-type]
    right[2] = np.nan
    assert expected.worst_error(right, DType.FLOAT32, **kind) == np.inf  # type: ignore[arg-type]


def test_sampled_products_on_the_host(tmp_path: Path) -> None:
    row = parcel(tmp_path, Operator.SDDMM, DType.FLOAT32)
    expected, pattern = expected_on_host(row), row.matrix().to_scipy().tocoo()
    whole = row.operand("a").astype(float) @ row.operand("b").astype(float).T
    np.testing.assert_allclose(expected.exact, whole[pattern.row, pattern.col], rtol=1e-13)


@pytest.mark.parametrize(("operator", "layout", "dtype"), SOME)
def test_the_device_agrees_with_the_host(
    operator: Operator,
    layout: Layout,
    dtype: DType,
    tmp_path: Path,
    emulator_settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    row = parcel(tmp_path, operator, dtype, layout)
    executor = open_executor(emulator_device())
    expected, on_host = expected_on_device(row, executor), expected_on_host(row)
    np.testing.assert_allclose(expected.exact, on_host.exact, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(expected.magnitude, on_host.magnitude, rtol=1e-6)
    check_against_host(row, expected)
    for place in (0, expected.exact.size - 1):
        assert element(row, row.matrix(), place) == pytest.approx(on_host.exact.reshape(-1)[place], rel=1e-12)
    expected.exact[...] += 0.5
    with pytest.raises(SparsegenError, match="on the host"):
        check_against_host(row, expected)
    dense = row.task.dtype.to_storage(row.matrix().to_scipy().toarray())
    for by_rows in (True, False):
        wanted = np.ascontiguousarray(dense if by_rows else dense.T)
        found = np.empty_like(wanted)
        executor.download(DenseMatrix(Workbench(row, executor)).stored(by_rows), found)
        np.testing.assert_array_equal(found, wanted)


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    row = parcel(tmp_path, Operator.SPMM, DType.FLOAT32)
    expected = expected_on_host(row)
    expected.keep(row)
    again = Expected.of(row)
    np.testing.assert_array_equal(again.exact, expected.exact)
    np.testing.assert_array_equal(again.terms, expected.terms)


def error(expected: Expected, result: np.ndarray, arithmetic: Arithmetic, *, is_ours: bool = False) -> float:
    return expected.worst_error(result, DType.FLOAT32, arithmetic=arithmetic, is_ours=is_ours)


def test_one_wrong_element_is_enough(tmp_path: Path) -> None:
    expected = expected_on_host(parcel(tmp_path, Operator.SPMM, DType.FLOAT32))
    right = expected.exact.astype(np.float32)
    assert error(expected, right, Arithmetic.FLOAT32) <= 1
    for bad in (np.nan, right[3, 4] + 0.01):
        wrong = right.copy()
        wrong[3, 4] = bad
        assert not error(expected, wrong, Arithmetic.FLOAT32) <= 1
    assert error(expected, right[:, :-1], Arithmetic.FLOAT32) == float("inf"), "another shape"


def test_tf32_may_cut_its_factors_and_nothing_else(tmp_path: Path) -> None:
    row = parcel(tmp_path, Operator.SPMM, DType.FLOAT32, Layout.ROW)
    expected = expected_on_host(row)

    def cut(values: np.ndarray) -> np.ndarray:
        return (np.ascontiguousarray(values).view(np.uint32) & 0xFFFFE000).view(np.float32)

    matrix = row.matrix()
    a = matrix.with_values(cut(matrix.values)).to_scipy()
    result = (a @ cut(np.asarray(row.operand("b")))).astype(np.float32)
    assert error(expected, result, Arithmetic.TF32) <= 1 < error(expected, result, Arithmetic.FLOAT32)
    result[0, 0] *= 1.02
    assert error(expected, result, Arithmetic.TF32) > 1


def test_sddmm_takes_its_second_operand_column_major() -> None:
    with pytest.raises(SuiteError, match="column"):
        Task(Operator.SDDMM, 2, 2, 2, DType.FLOAT32, Layout.ROW)
