"""Values that an element type cannot hold: refused, or counted; complex and masked arrays refused everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import sparsegen
from sparsegen.errors import MatrixError, OperandError, SparsegenError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType, SddmmEpilogue, SddmmProblem, SoftmaxProblem, SpmmProblem
from sparsegen.operators.base.overflow import require_held

EDGES = (
    65503.0,
    65504.0,
    65519.99,
    65520.0,
    3.3895e38,
    3.39e38,
    3.3961e38,
    3.4028235e38,
    3.40282356e38,
    3.5e38,
)


@given(
    st.sampled_from(EDGES) | st.floats(), st.sampled_from(list(DType)), st.sampled_from(["f8", "f4", "f2"])
)
def test_overflow_is_what_rounding_makes_infinite(value: float, dtype: DType, stored: str) -> None:
    with np.errstate(over="ignore"):
        values = np.array([value, -value, 1.0]).astype(stored)
        lost = np.isfinite(values) & ~np.isfinite(dtype.rounded(values))
    assert dtype.overflows(values) == np.count_nonzero(lost)


def matrix(largest: float = 1e6) -> CsrMatrix:
    return sparsegen.as_csr(scipy.sparse.diags_array([1.0, largest, 2.0, -largest, 0.5, 3.0]))


def test_values_that_overflow_are_refused_or_counted(caplog: pytest.LogCaptureFixture) -> None:
    problem = SpmmProblem(6, 6, 4, DType.FLOAT16)
    with pytest.raises(MatrixError, match=r"2 of 6 .* float16 \(the largest is 1e\+06\).*--allow-overflow"):
        require_held(problem, matrix(), allow_overflow=False)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        require_held(problem, matrix(), allow_overflow=True)
    assert [r.getMessage() for r in caplog.records] == [
        "2 of 6 finite values become infinite in float16 (the largest is 1e+06)"
    ]
    require_held(SpmmProblem(6, 6, 4, DType.BFLOAT16), matrix(), allow_overflow=False)


def test_where_the_pattern_alone_counts_values_may_be_anything() -> None:
    scaled = SddmmProblem(6, 6, 8, DType.FLOAT16, SddmmEpilogue.SCALE)
    with pytest.raises(MatrixError, match="become infinite"):
        require_held(scaled, matrix(), allow_overflow=False)
    for problem in (SddmmProblem(6, 6, 8, DType.FLOAT16), SoftmaxProblem(6, 6, DType.FLOAT16)):
        require_held(problem, matrix(), allow_overflow=False)


OPTIONS = {"n": 4, "dtype": "float16", "device": "emulator"}


@pytest.mark.usefixtures("own_database")
@pytest.mark.parametrize("call", [sparsegen.prepare, sparsegen.tune])
def test_every_way_in_asks(call: Callable[..., Any]) -> None:
    with pytest.raises(MatrixError, match="become infinite in float16"):
        call(matrix(), **OPTIONS)
    with pytest.raises(MatrixError, match="become infinite in float16"):
        call(matrix(), operator="sddmm", k=8, dtype="float16", epilogue="scale", device="emulator")


UNREAL = [
    np.ones(6) * 1j,
    np.ma.masked_array(np.ones(6), mask=[0, 0, 1, 0, 0, 0]),
    np.array(["1"] * 6),
    np.array([None] * 6),
]


@pytest.mark.usefixtures("own_database")
def test_operators_take_real_numbers_that_fit(
    monkeypatch: pytest.MonkeyPatch, emulator_settings: Any
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    op = sparsegen.prepare(matrix(2.0), epilogue="bias", **OPTIONS)
    b = np.ones((6, 4), np.float16)
    for values in UNREAL:
        with pytest.raises(OperandError):
            op.update_values(values)
        with pytest.raises(OperandError):
            sparsegen.prepare(matrix(2.0), epilogue="bias", bias=values, **OPTIONS)
    for name in ("values", "bias"):
        with pytest.raises(OperandError, match=f"{name}: 6 of 6 finite values become infinite in float16"):
            if name == "values":
                op.update_values(np.full(6, 1e5))
            else:
                sparsegen.prepare(matrix(2.0), epilogue="bias", bias=np.full(6, 1e5), **OPTIONS)
    with pytest.raises(OperandError, match="MaskedArray"):
        op(np.ma.masked_array(b, mask=b > 0), bias=np.ones(6, np.float16))
    infinite = sparsegen.prepare(matrix(), allow_overflow=True, **OPTIONS)(b)
    assert infinite[:, 0].tolist() == [1.0, np.inf, 2.0, -np.inf, 0.5, 3.0]


@pytest.mark.parametrize("values", [np.eye(3) * 1j, np.ma.masked_array(np.eye(3), mask=np.eye(3) > 0)])
def test_matrices_of_other_numbers(values: Any, tmp_path: Path) -> None:
    with pytest.raises(MatrixError):
        sparsegen.as_csr(values)
    with pytest.raises(SparsegenError):
        sparsegen.prune(values, sparsity=0.5)


@pytest.mark.parametrize("offsets", [[0.5, 1.0], [[0, 1]], [0, 2**40], [0, 0], [0]])
def test_diagonals_are_integers(offsets: Any, tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, format=b"dia", shape=(3, 3), data=np.ones((2, 3)), offsets=np.array(offsets))
    with pytest.raises(MatrixError, match=str(path)):
        sparsegen.load_matrix(path)
    np.savez(path, format=b"dia", shape=(3, 3), data=np.ones((2, 3)), offsets=np.array([0, 1]))
    assert sparsegen.load_matrix(path).nnz == 5
