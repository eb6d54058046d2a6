"""Patterns of the benchmark's cases: shape, density, structure, and the same matrix everywhere."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from sparsegen.bench.patterns import generators
from sparsegen.bench.patterns.patterns import (
    Band,
    Blocks,
    EqualRows,
    Independent,
    MatrixFile,
    Pattern,
    PowerLaw,
    SharedRows,
    SlidingWindow,
    VaryingRows,
    pattern_from_dict,
)
from sparsegen.errors import MatrixError, SuiteError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features

PINNED = {  # first digits of the fingerprints: what result files of any machine and year refer to
    Independent(50, 71, 0.7): "583f373a6bbfca90",
    Independent(50, 71, 0.0): "00026b4f4ab982db",
    EqualRows(40, 300, 0.6): "cb11165d2d302fbf",
    EqualRows(40, 300, 0.97): "2824eb77ceb32e90",
    VaryingRows(60, 200, 0.9, 0.8): "c61aba61e6f5d520",
    Blocks(96, 64, 0.5, 8): "f2c09f108fd84bad",
    SharedRows(48, 64, 0.9, 16): "079a0ecd903e40fc",
    Band(200, 200, 16): "905b9ee752abc249",
    SlidingWindow(200, 200, 16, 4): "dc1b1f32575096ea",
    PowerLaw(500, 500, 6.0, 2.5): "e408976fbbd2e736",
}


def every_kind(rows: int, columns: int, sparsity: float, seed: int) -> list[CsrMatrix]:
    patterns = (
        Independent(rows, columns, sparsity, seed),
        EqualRows(rows, columns, sparsity, seed),
        VaryingRows(rows, columns, sparsity, 0.0, seed),
        Blocks(3 * rows, 3 * columns, sparsity, 3, seed),
    )
    return [pattern.matrix() for pattern in patterns]


def test_groups_of_rows_share_their_columns() -> None:
    matrix = SharedRows(48, 64, 0.9, 16).matrix()
    sets, counts = np.unique(matrix.column_indices.reshape(48, 6), axis=0, return_counts=True)
    assert counts.tolist() == [16, 16, 16] and len(sets) == 3
    with pytest.raises(MatrixError, match="groups of 7 do not share out 48 rows"):
        SharedRows(48, 64, 0.9, 7).matrix()


@pytest.mark.parametrize("pattern", PINNED, ids=str)
def test_fingerprints_stay(pattern: Pattern) -> None:
    assert pattern.matrix().fingerprint()[:16] == PINNED[pattern]


@settings(max_examples=50)
@given(st.integers(0, 40), st.integers(0, 40), st.floats(0, 1), st.integers(0, 2**32))
def test_valid_at_every_size(rows: int, columns: int, sparsity: float, seed: int) -> None:
    first, second = (every_kind(rows, columns, sparsity, seed) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.fingerprint() == other.fingerprint()
        assert np.array_equal(one.values, other.values)
        assert one.values.dtype == np.float32 and np.all(one.values != 0)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_density_and_seed(sparsity: float) -> None:
    for one, other in zip(every_kind(600, 500, sparsity, 1), every_kind(600, 500, sparsity, 2), strict=True):
        assert Features.of(one).density == pytest.approx(1 - sparsity, rel=0.03)
        assert (one.fingerprint() == other.fingerprint()) == (sparsity in (0.0, 1.0))


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [matrix.fingerprint() for matrix in every_kind(41, 33, 0.4, 3)]
    monkeypatch.setattr(generators, "_CHUNK", 100)
    assert [matrix.fingerprint() for matrix in every_kind(41, 33, 0.4, 3)] == whole


@pytest.mark.parametrize("pattern", [Independent, EqualRows])
@pytest.mark.parametrize("sparsity", [0.98, 0.8])  # equal rows: drawn by rejection, and by ranking
def test_columns_are_uniform(pattern: type[Independent] | type[EqualRows], sparsity: float) -> None:
    counts = np.bincount(pattern(4000, 50, sparsity, 3).matrix().column_indices, minlength=50)
    expected = 4000 * (1 - sparsity)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 100  # 49 degrees of freedom: a fair generator exceeds it less than once in 10⁴


def test_independent_rows_vary_as_a_binomial() -> None:
    features = Features.of(Independent(4000, 400, 0.7, 1).matrix())
    assert features.row_cov == pytest.approx((0.7 / (0.3 * 400)) ** 0.5, rel=0.05)


@pytest.mark.parametrize(("columns", "sparsity", "length"), [(1024, 0.6, 410), (128, 0.95, 6), (7, 1.0, 0)])
def test_equal_rows_are_equal(columns: int, sparsity: float, length: int) -> None:
    lengths = np.diff(EqualRows(50, columns, sparsity).matrix().row_offsets)
    assert set(lengths) == {length}


@pytest.mark.parametrize("sparsity", [0.3, 0.7, 0.95, 0.98])
@pytest.mark.parametrize("row_cov", [0.1, 0.4, 0.6])
def test_rows_vary_as_asked(sparsity: float, row_cov: float) -> None:
    features = Features.of(VaryingRows(512, 1024, sparsity, row_cov).matrix())
    assert features.row_cov == pytest.approx(row_cov, rel=0.04)
    assert features.nnz == pytest.approx(512 * 1024 * (1 - sparsity), abs=1)


def test_rows_of_extreme_variation() -> None:
    features = Features.of(VaryingRows(2048, 512, 0.99, 4.0).matrix())
    assert features.row_cov == pytest.approx(4.0, rel=0.1)
    assert features.density == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("block", [1, 4, 32])
def test_blocks_are_whole_and_counted(block: int) -> None:
    dense = Blocks(256, 128, 0.7, block, 5).matrix().to_scipy().toarray() != 0
    cells = dense.reshape(256 // block, block, 128 // block, block).sum(axis=(1, 3))
    assert set(cells.ravel()) == {0, block * block}
    assert np.count_nonzero(cells) == round(0.3 * cells.size)


def test_a_power_law_has_hubs_in_rows_and_columns() -> None:
    matrix = PowerLaw(5000, 5000, 8.0, 2.2, 1).matrix()
    assert matrix.nnz == 40000
    for degrees in (np.diff(matrix.row_offsets), np.bincount(matrix.column_indices, minlength=5000)):
        top = np.sort(degrees)[::-1]
        assert top[:50].sum() > matrix.nnz / 4
        assert np.median(degrees) < 8
    flatter = PowerLaw(5000, 5000, 8.0, 6.0, 1).matrix()
    assert Features.of(flatter).row_cov < Features.of(matrix).row_cov / 3


@pytest.mark.parametrize("nodes", [0, 1, 15])
def test_graphs_without_edges(nodes: int) -> None:
    assert PowerLaw(nodes, nodes, 0.0, 2.5).matrix().nnz == 0


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (Independent(-1, 2, 0.5), "-1 rows"),
        (EqualRows(2, 2**31, 0.5), "columns"),
        (Independent(2, 2, -0.5), "density"),
        (EqualRows(2, 2, float("nan")), "density"),
        (VaryingRows(2, 2, 0.5, -1.0), "CoV"),
        (VaryingRows(2, 2, 0.5, 1.0), r"lies in \[0, 1\)"),
        (Blocks(64, 65, 0.5, 32), "do not tile"),
        (Blocks(64, 64, 0.5, 0), "do not tile"),
        (PowerLaw(64, 65, 1.0, 2.5), "square"),
        (Band(64, 65, 8), "band mask: it is square"),
        (SlidingWindow(64, 64, 0), "window = 0"),
        (PowerLaw(64, 64, 1.0, 2.0), "exponent"),
        (PowerLaw(64, 64, 5.0, 2.5), "mean degree"),
    ],
)
def test_senseless_numbers(pattern: Pattern, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        pattern.matrix()


@pytest.mark.parametrize("pattern", [*PINNED, MatrixFile(3, 4, "w.npz", "a", 1)], ids=str)
def test_json_round_trip(pattern: Pattern) -> None:
    again = pattern_from_dict(pattern.to_dict())
    assert again == pattern and hash(again) == hash(pattern)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "striped"}, "unknown pattern 'striped'"),
        ({}, "unknown pattern None"),
        ({"kind": "equal_rows", "rows": 2}, "columns"),
        ({"kind": "equal_rows", "rows": 2, "columns": 2, "sparsity": 0.5, "block": 3}, "block"),
    ],
)
def test_malformed_patterns(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SuiteError, match=message):
        pattern_from_dict(fields)
