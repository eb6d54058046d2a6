"""Means of a run: which rows count, and that a ratio says the right thing is faster."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from bench_samples import row

from sparsegen.bench.results import TUNED
from sparsegen.bench.summary import summarize
from sparsegen.operators import DType


def test_ratios_of_one_row() -> None:
    (found,) = summarize([row(ours=5.0, untuned=6.0, dense=10.0, sparse=8.0)])
    assert found.to_dense.value == pytest.approx(0.5)
    assert found.to_best_sparse.value == pytest.approx(0.625)
    assert found.untuned_to_tuned.value == pytest.approx(1.2)
    assert found.best_sparse_to_dense.value == pytest.approx(0.8)
    assert found.faster_than_dense.value == 1.0


def test_tf32_stands_beside_float32_alone() -> None:
    one, other = summarize([row(ours=5.0, dense=10.0), row(dtype=DType.FLOAT16)])
    assert one.to_dense.value == pytest.approx(0.5) and one.to_dense_tf32.value == pytest.approx(2.0)
    assert other.to_dense_tf32.count == 0


def test_means_are_geometric() -> None:
    (found,) = summarize([row("a", ours=5.0, dense=10.0), row("b", ours=20.0, dense=10.0)])
    assert found.to_dense.value == pytest.approx(1.0)
    assert found.faster_than_dense.value == 0.5


def test_rows_without_a_time_do_not_count() -> None:
    without = replace(row("b"), cells=tuple(c for c in row("b").cells if c.contender != TUNED))
    (found,) = summarize([row("a"), without])
    assert found.rows == 2 and found.to_dense.count == 1
    assert found.best_sparse_to_dense.count == 2


def test_nothing_timed_is_no_number() -> None:
    (found,) = summarize([replace(row(), cells=())])
    assert math.isnan(found.to_dense.value) and found.to_dense.count == 0


def test_suites_and_types_are_apart() -> None:
    found = summarize([row(), row(dtype=DType.FLOAT16), row(suite="other"), row("b")])
    assert [(s.suite, str(s.dtype), s.rows) for s in found] == [
        ("made-up", "float32", 2),
        ("made-up", "float16", 1),
        ("other", "float32", 1),
    ]
