"""Every contender on a GPU: none is wrong, none crashes, and those that are installed have times."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsegen import backends
from sparsegen.bench.case import Case, Operator
from sparsegen.bench.contenders import contenders
from sparsegen.bench.patterns import Blocks, Independent, Pattern
from sparsegen.bench.request import Request
from sparsegen.bench.results import Protocol, Status
from sparsegen.bench.run import run
from sparsegen.measure.l2 import L2
from sparsegen.operators import DType, Layout

pytestmark = pytest.mark.gpu
HALF, BOTH = (DType.FLOAT16,), (DType.FLOAT32, DType.BFLOAT16)


def case(
    name: str, operator: Operator, sizes: tuple[int, int, int], pattern: Pattern, **values: object
) -> Case:
    m, k, n = sizes
    fields = {"dtypes": BOTH, "layout": Layout.ROW, "source": ""} | values
    return Case(suite="gpu", name=name, operator=operator, m=m, k=k, n=n, pattern=pattern, **fields)  # type: ignore[arg-type]


def test_every_contender_is_right(tmp_path: Path) -> None:
    cases = [
        case("rows", Operator.SPMM, (256, 128, 64), Independent(256, 128, 0.8)),
        case("columns", Operator.SPMM, (256, 128, 8), Independent(256, 128, 0.8), layout=Layout.COLUMN),
        case("blocks", Operator.SPMM, (256, 256, 128), Blocks(256, 256, 0.5, 32), dtypes=HALF),
        case("sampled", Operator.SDDMM, (256, 64, 128), Independent(256, 128, 0.8), layout=Layout.COLUMN),
    ]
    request = Request(
        cases=cases,
        contenders=list(contenders().values()),
        device=backends.find_device("cuda"),
        protocol=Protocol(L2.COLD, rounds=2, samples=5, tune="off"),
        db=str(tmp_path / "t.db"),
    )
    finished = run(request, lambda step: None)
    assert len(finished.results.rows) == 7 and finished.results.rates is not None
    bad = {Status.WRONG, Status.CRASHED, Status.TIMEOUT}
    failed = [
        (r.case, str(r.dtype), c.contender, c.reason)
        for r in finished.results.rows
        for c in r.cells
        if c.status in bad
    ]
    assert not failed
    for row in finished.results.rows:
        assert row.dense() is not None and row.floor.us is not None
        has_rival = row.operator == "spmm" or row.dtype is not DType.BFLOAT16  # cuSPARSE samples no bfloat16
        assert (row.best_sparse() is not None) == has_rival
