"""Cases: problem and pattern fit, JSON round trip."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sparsegen.bench.patterns.case import Case, variations
from sparsegen.bench.patterns.patterns import EqualRows, Independent
from sparsegen.errors import SuiteError
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)

SPMM = SpmmProblem(8, 6, 4, layout=Layout.COLUMN)
OWN = SpmmProblem(8, 6, 4, epilogue=Epilogue.BIAS, batch=3, item_values=ItemValues.OWN)


def make_case(**changes: Any) -> Case:
    fields: dict[str, Any] = {
        "suite": "tiny",
        "name": "8x6x4 .50",
        "problem": SPMM,
        "dtypes": (DType.FLOAT32, DType.FLOAT16),
        "pattern": Independent(8, 6, 0.5),
        "source": "this test",
    }
    return Case(**fields | changes)


def sddmm_case() -> Case:
    return make_case(problem=SddmmProblem(8, 4, 6), name="8x4x6 .50", pattern=EqualRows(8, 4, 0.5))


@pytest.mark.parametrize(
    "case",
    [
        make_case(),
        sddmm_case(),
        make_case(problem=OWN),
        make_case(problem=SoftmaxProblem(8, 6, batch=2)),
        make_case(problem=SparseAttentionProblem(8, 6, 16, DType.FLOAT16), dtypes=(DType.FLOAT16,)),
    ],
    ids=str,
)
def test_json_round_trip(case: Case) -> None:
    again = Case.from_dict(json.loads(json.dumps(case.to_dict())))
    assert again == case and hash(again) == hash(case)


def test_the_problem_in_each_dtype() -> None:
    case = make_case()
    assert case.in_dtype(DType.FLOAT32) == SPMM
    assert case.in_dtype(DType.FLOAT16) == SpmmProblem(8, 6, 4, DType.FLOAT16, Layout.COLUMN)
    halves = case.of_dtypes((DType.FLOAT16,))
    assert halves.problem == case.in_dtype(DType.FLOAT16) and halves.dtypes == (DType.FLOAT16,)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (SPMM, []),
        (replace(SPMM, dtype=DType.BFLOAT16), []),
        (OWN, ["epilogue=bias", "batch=3", "item_values=own"]),
        (SoftmaxProblem(8, 6), []),
        (SparseAttentionProblem(8, 6, 16, batch=2), ["batch=2"]),
    ],
    ids=str,
)
def test_names_say_what_is_not_as_usual(problem: Problem, said: list[str]) -> None:
    assert list(variations(problem)) == said


def test_the_sparse_matrix_is_a_for_spmm_and_c_for_sddmm() -> None:
    assert make_case().matrix().shape == (8, 6)
    assert sddmm_case().matrix().shape == (8, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": SpmmProblem(7, 6, 4)}, "tiny 8x6x4 .50: the sparse matrix is 7 x 6, its pattern 8 x 6"),
        ({"problem": SddmmProblem(8, 4, 6)}, "the sparse matrix is 8 x 4"),
        ({"problem": SpmmProblem(0, 6, 4)}, "a matrix of 0 x 6 has nothing to measure"),
        ({"dtypes": ()}, "at least one dtype"),
        ({"dtypes": (DType.FLOAT16, DType.FLOAT32)}, "the problem is in the first"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        make_case(**changes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("problem", {"operator": "spgemm"}, r"problem\.operator: expected one of spmm, .*spgemm"),
        ("problem", SPMM.to_dict(), "a member 'operator'"),
        ("problem", {"operator": "spmm"} | SPMM.to_dict() | {"n": 0}, "n = 0 is outside"),
        ("problem", {"operator": "spmm"} | SPMM.to_dict() | {"layout": None}, "not a valid Layout"),
        ("dtypes", ["float8"], "float8"),
        ("dtypes", 3, "expected an array"),
        ("pattern", {"kind": "striped"}, "unknown pattern"),
        ("extra", 1, "extra"),
    ],
)
def test_malformed_json(name: str, value: Any, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        Case.from_dict(make_case().to_dict() | {name: value})


@pytest.mark.parametrize("name", ["problem", "pattern", "dtypes", "source"])
def test_missing_fields(name: str) -> None:
    fields = make_case().to_dict()
    del fields[name]
    with pytest.raises(SuiteError, match=f"a member '{name}'"):
        Case.from_dict(fields)
