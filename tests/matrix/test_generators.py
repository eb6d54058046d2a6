"""Seeded generators: shape, density, structure, reproducibility."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from sparsegen.errors import MatrixError
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import power_law, random_blocks, random_rows, random_uniform, uniform_rows

sizes, densities, seeds = st.integers(0, 40), st.floats(0, 1), st.integers(0, 2**32)


def make_all(m: int, k: int, density: float, seed: int) -> list[CsrMatrix]:
    return [
        random_uniform(m, k, density, seed),
        random_rows(m, k, density, 0.7, seed),
        power_law(m, k, density, seed),
        random_blocks(m, k, (3, 5), density, seed),
    ]


@given(sizes, sizes, densities, seeds)
def test_always_valid_and_the_same_for_the_same_seed(m: int, k: int, density: float, seed: int) -> None:
    once, again = make_all(m, k, density, seed), make_all(m, k, density, seed)
    for first, second in zip(once, again, strict=True):
        assert first.shape == (m, k)
        assert first.values.dtype == np.float32
        assert np.all(first.values != 0)
        assert first.fingerprint() == second.fingerprint()
        assert np.array_equal(first.values, second.values)


@pytest.mark.parametrize("density", [0.01, 0.05, 0.2, 0.4])
def test_density_and_seed(density: float) -> None:
    for one, other in zip(make_all(600, 500, density, 1), make_all(600, 500, density, 2), strict=True):
        assert one.nnz / (600 * 500) == pytest.approx(density, rel=0.15)
        assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("density", [0.02, 0.2])  # drawn by rejection, and as permutations
def test_columns_are_uniform(density: float) -> None:
    counts = np.bincount(random_uniform(4000, 50, density, 3).column_indices, minlength=50)
    expected = 4000 * density
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 100  # 49 degrees of freedom: a fair generator exceeds it less than once in 10⁴


@pytest.mark.parametrize("row_cov", [0.0, 0.2, 0.5, 1.0])
def test_rows_have_the_asked_variation(row_cov: float) -> None:
    features = Features.of(random_rows(4000, 4000, 0.05, row_cov, 5))
    assert features.row_cov == pytest.approx(row_cov, abs=0.05)
    assert features.density == pytest.approx(0.05, rel=0.1)


def test_a_power_law_has_few_long_rows() -> None:
    lengths = np.sort(np.diff(power_law(2000, 2000, 0.02, 7, exponent=1.0).row_offsets))[::-1]
    assert lengths[0] == 2000
    assert lengths[:200].sum() > lengths.sum() / 2
    flat = Features.of(power_law(2000, 2000, 0.02, 7, exponent=0.0))
    assert flat.row_cov < 0.05


def test_blocks_are_whole() -> None:
    features = Features.of(random_blocks(320, 640, 16, 0.2, 9))
    assert features.block_fill == 1.0
    dense = random_blocks(10, 11, (4, 8), 0.5, 1).to_scipy().toarray() != 0
    for row in range(0, 10, 4):
        for column in range(0, 11, 8):
            assert len(np.unique(dense[row : row + 4, column : column + 8])) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 2, 0.5, 0), "-1 rows"),
        ((2, 2**31, 0.5, 0), "columns"),
        ((2, 2, 1.5, 0), "density"),
        ((2, 2, np.nan, 0), "density"),
    ],
)
def test_senseless_arguments(arguments: tuple[int, int, float, int], message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        random_uniform(*arguments)
    with pytest.raises(MatrixError, match=message):
        power_law(*arguments)


def test_uniform_rows_are_uniform() -> None:
    matrix = uniform_rows(50, 40, 17, 2)
    np.testing.assert_array_equal(np.diff(matrix.row_offsets), 17)
    assert len({tuple(row) for row in matrix.column_indices.reshape(50, 17)}) == 50
    assert matrix.fingerprint() == uniform_rows(50, 40, 17, 2).fingerprint()
    assert uniform_rows(3, 4, 4, 0).nnz == 12 and uniform_rows(3, 4, 0, 0).nnz == 0
    with pytest.raises(MatrixError, match="cannot have 41 nonzeros"):
        uniform_rows(50, 40, 41, 2)


def test_senseless_structure() -> None:
    with pytest.raises(MatrixError, match="row_cov"):
        random_rows(2, 2, 0.5, -1.0, 0)
    with pytest.raises(MatrixError, match="block"):
        random_blocks(2, 2, 0, 0.5, 0)
