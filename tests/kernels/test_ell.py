"""The ELL format's places, padding and requirement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsegen.errors import MatrixError
from sparsegen.kernels.layouts import ell
from sparsegen.kernels.layouts.ell import (
    ell_sources,
    gather_repeating,
    interleave_classes,
    padding_requirement,
    places_in_rows,
)
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import uniform_rows
from sparsegen.operators import DType
from sparsegen.testing.matrices import matrices


@pytest.mark.parametrize("name", ["few_long_rows", "empty_rows", "uniform_rows", "no_nonzeros"])
def test_rows_and_their_rest_are_the_matrix(name: str) -> None:
    matrix = matrices()[name]
    m, k = matrix.shape
    places = places_in_rows(matrix)
    source = ell_sources(matrix, m + 3, 5, places)
    assert source.shape == (m + 3, 5)
    stored = source[source >= 0]
    rest = np.flatnonzero(places >= 5)
    np.testing.assert_array_equal(np.sort(np.concatenate([stored, rest])), np.arange(matrix.nnz))
    dense = np.zeros((m + 3, k), dtype=np.float32)
    columns = gather_repeating(matrix, matrix.column_indices, source)
    values = stored_values(matrix, source, DType.FLOAT32)
    if k:
        np.add.at(dense, (np.arange(m + 3)[:, None], columns), values)
    rows = np.repeat(np.arange(m), np.diff(matrix.row_offsets))
    dense[rows[rest], matrix.column_indices[rest]] += matrix.values[rest]
    np.testing.assert_array_equal(dense[:m], matrix.to_scipy().toarray())


@pytest.mark.parametrize("name", ["few_long_rows", "empty_rows"])
def test_padding_meets_columns_of_its_own_row(name: str) -> None:
    matrix = matrices()[name]
    source = ell_sources(matrix, matrix.shape[0], 40, places_in_rows(matrix))
    columns = gather_repeating(matrix, matrix.column_indices, source)
    for row, lengths in enumerate(np.diff(matrix.row_offsets)):
        own = matrix.column_indices[matrix.row_offsets[row] : matrix.row_offsets[row] + lengths]
        assert set(columns[row]) <= (set(own) or {0})


def test_too_many_places_are_refused_before_they_are_allocated() -> None:
    matrix = matrices()["huge_row"]
    with pytest.raises(MatrixError, match="more than 32-bit offsets reach"):
        ell_sources(matrix, 2_000_000, 1100, places_in_rows(matrix))


def test_nonzeros_beyond_the_rows_places_need_offsets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of 4 nonzeros with 3 places each: 6 places and 2 nonzeros beyond."""
    matrix = uniform_rows(2, 8, 4, 0)
    monkeypatch.setattr(ell, "MAX_INDEX", 8)
    assert ell_sources(matrix, 2, 3, places_in_rows(matrix)).tolist() == [[0, 1, 2], [4, 5, 6]]
    monkeypatch.setattr(ell, "MAX_INDEX", 7)
    with pytest.raises(MatrixError, match="2 rows of 3 places, and 2 nonzeros beyond"):
        ell_sources(matrix, 2, 3, places_in_rows(matrix))


def test_no_packed_array_is_empty() -> None:
    assert empty_as_padding(np.zeros((0, 4), np.int32)).tolist() == [-1]
    assert empty_as_padding(np.array([[3, -1], [0, 1]], np.int32)).tolist() == [3, -1, 0, 1]


def test_the_requirement_counts_padding() -> None:
    even = Features.of(matrices()["uniform_rows"])
    assert padding_requirement(even).holds
    assert padding_requirement(replace(even, row_max=38)).holds
    broken = padding_requirement(replace(even, row_max=39))
    assert not broken.holds
    assert "at most 2 places" in broken.sentence
    assert padding_requirement(Features.of(matrices()["no_nonzeros"])).holds


def test_classes_take_turns() -> None:
    matrix = uniform_rows(40, 64, 24, 3)
    kinds = matrix.column_indices % 4
    shifts = np.arange(40) * 3
    places = interleave_classes(matrix.row_offsets, kinds, 4, shifts)
    for row in range(40):
        mine = slice(matrix.row_offsets[row], matrix.row_offsets[row + 1])
        by_place = np.empty(24, dtype=np.int64)
        by_place[places[mine]] = kinds[mine]  # every place is taken once, or this leaves garbage
        assert sorted(places[mine]) == list(range(24))
        turns = (np.arange(24) + shifts[row]) % 4
        matched = np.minimum(np.bincount(kinds[mine], minlength=4), np.bincount(turns, minlength=4)).sum()
        assert (by_place == turns).sum() >= matched


def test_classes_of_no_nonzeros() -> None:
    none = np.zeros(0, np.int32)
    assert interleave_classes(np.zeros(3, np.int32), none, 4, np.zeros(2, np.int64)).size == 0
