"""Cases: sizes and pattern fit, JSON round trip."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparsegen.bench.case import Case, Operator
from sparsegen.bench.patterns import EqualRows, Independent
from sparsegen.bench.task import Task
from sparsegen.errors import SuiteError
from sparsegen.operators import DType, Layout


def make_case(**changes: Any) -> Case:
    fields: dict[str, Any] = {
        "suite": "tiny",
        "name": "8x6x4 .50",
        "operator": Operator.SPMM,
        "m": 8,
        "k": 6,
        "n": 4,
        "dtypes": (DType.FLOAT32, DType.FLOAT16),
        "layout": Layout.COLUMN,
        "pattern": Independent(8, 6, 0.5),
        "source": "this test",
    }
    return Case(**fields | changes)


def sddmm_case() -> Case:
    return make_case(operator=Operator.SDDMM, name="8x4x6 .50", pattern=EqualRows(8, 4, 0.5))


@pytest.mark.parametrize("case", [make_case(), sddmm_case()])
def test_json_round_trip(case: Case) -> None:
    again = Case.from_dict(json.loads(json.dumps(case.to_dict())))
    assert again == case and hash(again) == hash(case)


def test_a_batch_is_written_where_there_is_one() -> None:
    batch = make_case(batch=4)
    assert Case.from_dict(batch.to_dict()) == batch and "batch" not in make_case().to_dict()
    task = Task.of(batch, DType.FLOAT16)
    assert task.operand_shapes == {"b": (4, 4, 6)} and task.result_shape(9) == (4, 4, 8)
    assert (
        task.item == Task.of(make_case(), DType.FLOAT16) and task.cost(9).flop == 4 * task.item.cost(9).flop
    )


def test_the_sparse_matrix_is_a_for_spmm_and_c_for_sddmm() -> None:
    assert make_case().matrix().shape == (8, 6)
    assert sddmm_case().matrix().shape == (8, 4)


def test_cases_of_other_n_share_their_pattern() -> None:
    patterns = {make_case(n=n).pattern for n in (1, 2, 3)}
    assert len(patterns) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": 7}, "tiny 8x6x4 .50: the sparse matrix is 7 x 6, its pattern 8 x 6"),
        ({"operator": Operator.SDDMM}, "the sparse matrix is 8 x 4"),
        ({"n": 0}, "n = 0"),
        ({"batch": 0}, "a batch has at least one item, got 0"),
        ({"dtypes": ()}, "dtype"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        make_case(**changes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("operator", "spgemm", "spgemm"),
        ("dtypes", ["float8"], "float8"),
        ("dtypes", 3, "wrong fields"),
        ("layout", None, "wrong fields"),
        ("pattern", {"kind": "striped"}, "unknown pattern"),
        ("extra", 1, "extra"),
    ],
)
def test_malformed_json(name: str, value: Any, message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        Case.from_dict(make_case().to_dict() | {name: value})


@pytest.mark.parametrize("name", ["operator", "pattern", "m", "source"])
def test_missing_fields(name: str) -> None:
    fields = make_case().to_dict()
    del fields[name]
    with pytest.raises(SuiteError, match=name):
        Case.from_dict(fields)
