"""The guides' tables of masks for every call and of networks, of made-up times."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bench_samples import cell, results, row

from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import UNTUNED, Kind
from sparsegen.operators import DsdProblem, DType, SparseNetworkProblem
from sparsegen.operators.masked.masked_problem import Block, Density

ROOT = Path(__file__).parents[1]
HALF = DType.FLOAT16


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import make_tables

    monkeypatch.setattr(make_tables, "RESULTS", tmp_path)
    return make_tables


def test_products_beside_dense_ones_without_zeros(tables: Any, tmp_path: Path) -> None:
    rows = []
    for share, ours, dense in ((1.0, 200.0, 190.0), (0.5, 100.0, 150.0)):
        problem = DsdProblem(
            m=4096, k=4096, n=4096, block=Block(128, 128), density=Density(share), dtype=HALF
        )
        cells = (cell(UNTUNED, Kind.OURS, ours, HALF), cell("cublas", Kind.DENSE, dense, HALF))
        one = row(f"4096 {share}", suite="sparsedrop", dtype=HALF)
        rows.append(replace(one, problem=problem, cells=cells))
    result_file.write(replace(results(), rows=tuple(rows)), tmp_path / "bench_sparsedrop.json.xz")
    made = tables.TABLES["masked-overview"]()
    assert "| `dsd`, half of the blocks dead | – | 1.50 × | – | – |" in made, "190 µs are of another row"
    assert "| `dsd`, no block dead | – | 0.95 × | – | – |" in made
    assert "| `sdd`, half of the blocks dead | – | – | – | – |" in made


def test_edges_of_networks(tables: Any, tmp_path: Path) -> None:
    problem = SparseNetworkProblem(m=120 * 1024, k=1027, n=60000, dtype=HALF)
    cells = (cell(UNTUNED, Kind.OURS, 2000.0, HALF), cell("cublas-layers", Kind.DENSE, 60000.0, HALF))
    alive = row("122880x1027x60000 alive", suite="spdnn", dtype=HALF)
    weights = problem.m * 32
    nnz = weights + problem.m * 3
    features = replace(alive.features, m=problem.m, k=problem.k, nnz=nnz)
    earlier, later = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
    alive = replace(
        alive, problem=problem, cells=cells, nnz=nnz, features=features, measured=earlier, state="0" * 40
    )
    rows = (alive, replace(alive, case="challenge", cells=cells[1:]))
    result_file.write(replace(results(), rows=rows), tmp_path / "bench_spdnn.json.xz")
    made = tables.TABLES["networks-overview"]()
    assert (
        "| 1024 neurons, every input alive | 60,000 | 2.00 | 118.0 | 2026-01-02; 0000000000 | "
        "30 × | – | – | 2026-01-02; 0000000000 |" in made
    )
    assert "challenge" not in made, "ours has no time"
    faster = replace(alive, cells=(cell(UNTUNED, Kind.OURS, 1500.0, HALF),), measured=later, state="1" * 40)
    result_file.write(replace(results(), rows=(faster,)), tmp_path / "explore_networks.json.xz")
    made = tables.TABLES["networks-overview"]()
    assert (
        "| 1024 neurons, every input alive | 60,000 | 1.50 | 157.3 | 2026-01-03; 1111111111 | "
        "30 × | – | – | 2026-01-02; 0000000000 |" in made
    ), "the newest time of ours; the ratio is of the row that has both"
    assert problem.edges(nnz) == weights
    assert problem.edges(0) == 0, "a network without neurons"
