"""Every baseline on a GPU: none is wrong, none crashes, and those that are installed have times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from sparsegen import backends
from sparsegen.bench.baselines import baselines
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Blocks, Independent, Pattern
from sparsegen.bench.results.results import UNTUNED, Protocol, Row, Status
from sparsegen.bench.run.request import Request
from sparsegen.bench.run.run import run
from sparsegen.measure.l2 import L2
from sparsegen.operators import (
    DType,
    Epilogue,
    ItemValues,
    Layout,
    Problem,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)

pytestmark = pytest.mark.gpu
HALF, BOTH = (DType.FLOAT16,), (DType.FLOAT32, DType.BFLOAT16)


def case(name: str, problem: Problem, pattern: Pattern, dtypes: tuple[DType, ...] = BOTH) -> Case:
    problem = replace(cast(Any, problem), dtype=dtypes[0])
    return Case("gpu", name, problem, dtypes, pattern, "")


def measured(cases: list[Case], tmp_path: Path) -> list[Row]:
    """The rows, in which nothing went wrong."""
    request = Request(
        cases=cases,
        baselines=list(baselines().values()),
        device=backends.find_device("cuda"),
        protocol=Protocol(L2.COLD, rounds=2, samples=5, tune="off"),
        db=str(tmp_path / "t.db"),
    )
    finished = run(request, lambda step: None)
    assert finished.results.rates is not None
    bad = {Status.WRONG, Status.CRASHED, Status.TIMEOUT}
    failed = [
        (r.case, str(r.dtype), c.baseline, c.reason)
        for r in finished.results.rows
        for c in r.cells
        if c.status in bad
    ]
    assert not failed
    return list(finished.results.rows)


SCATTERED = Independent(256, 128, 0.8)
# What PyTorch has dense operations for that take as many batch elements at once.
DENSE_TOO = "softmax", "attention"


def test_every_baseline_is_right(tmp_path: Path) -> None:
    rows = measured(
        [
            case("rows", SpmmProblem(256, 128, 64), SCATTERED),
            case("columns", SpmmProblem(256, 128, 8, layout=Layout.COLUMN), SCATTERED),
            case("blocks", SpmmProblem(256, 256, 128), Blocks(256, 256, 0.5, 32), HALF),
            case("sampled", SddmmProblem(256, 128, 64), SCATTERED),
        ],
        tmp_path,
    )
    assert len(rows) == 7
    for row in rows:
        assert row.dense() is not None and row.floor.us is not None
        has_rival = row.operator == "spmm" or row.dtype is not DType.BFLOAT16  # cuSPARSE samples no bfloat16
        assert (row.best_sparse() is not None) == has_rival


def test_ours_are_right_for_every_operator(tmp_path: Path) -> None:
    own_values = SpmmProblem(256, 128, 32, batch=3, item_values=ItemValues.OWN, epilogue=Epilogue.BIAS_RELU)
    rows = measured(
        [
            case("softmax", SoftmaxProblem(256, 128), SCATTERED),
            case("gradient", SoftmaxBackwardProblem(256, 128, batch=2), SCATTERED),
            case("attention", SparseAttentionProblem(256, 128, 64, batch=2), SCATTERED, HALF),
            case("own values", own_values, SCATTERED),
        ],
        tmp_path,
    )
    assert len(rows) == 7
    for row in rows:
        cell = row.cell(UNTUNED)
        assert cell is not None and cell.status is Status.OK, cell
        assert (row.dense() is not None) == (row.case in DENSE_TOO), row.case
        assert row.floor.us is not None
