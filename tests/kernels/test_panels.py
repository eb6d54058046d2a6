"""Division of patterns into panels and tiles for `mma_sddmm`."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.kernels.sddmm import panels
from sparsegen.kernels.sddmm.panels import Panels, expected_tiles
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.testing.matrices import csr, matrices


def coordinates(panels: Panels, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every nonzero as the lists of its tile have them."""
    slot, at = np.divmod(panels.place, width)
    row = panels.rows[panels.of_tile[panels.tile] * height + slot]
    return row, panels.columns[panels.tile * width + at]


def check(matrix: CsrMatrix, height: int, width: int, *, sort_rows: bool = False) -> Panels:
    panels = Panels.of(matrix, height, width, sort_rows=sort_rows)
    row, column = coordinates(panels, height, width)
    assert np.array_equal(row, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.row_offsets)))
    assert np.array_equal(column, matrix.column_indices)
    assert np.all(np.diff(panels.of_tile) >= 0)
    for tile, count in enumerate(panels.counts):
        numbers = panels.number[panels.tile == tile]
        assert count > 0 and sorted(numbers) == list(range(count))
    shifts = panels.shifts[panels.tile * height + panels.place // width]
    assert np.array_equal(panels.number + shifts, np.arange(matrix.nnz))
    return panels


@pytest.mark.parametrize("sort_rows", [False, True])
@pytest.mark.parametrize(("height", "width"), [(16, 32), (64, 128), (128, 256)])
@pytest.mark.parametrize("name", matrices())
def test_lists_lead_to_every_nonzero_once(name: str, height: int, width: int, sort_rows: bool) -> None:
    check(matrices()[name], height, width, sort_rows=sort_rows)


@pytest.mark.parametrize("name", ["odd_shape", "empty_rows", "wide", "one_element"])
def test_sorting_and_a_grid_find_the_same_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for bytes_per_nonzero in (0, 1 << 20):
        monkeypatch.setattr(panels, "GRID_PER_NONZERO", bytes_per_nonzero)
        found.append(check(matrices()[name], 16, 32))
    for field in ("of_tile", "rows", "columns", "shifts", "place"):
        np.testing.assert_array_equal(getattr(found[0], field), getattr(found[1], field))


def test_only_rows_and_columns_with_nonzeros_are_in_tiles() -> None:
    """Every third row has nonzeros, in 40 columns far from each other."""
    dense = np.zeros((96, 4000), dtype=np.float32)
    dense[::3, 50::100] = 1
    panels = check(csr(dense), 32, 64)
    assert panels.of_tile.tolist() == [0]
    assert panels.rows.tolist() == list(range(0, 96, 3))
    assert panels.columns[:40].tolist() == list(range(50, 4000, 100))


def test_sorted_rows_share_columns() -> None:
    """Rows of a band in any order: sorted by their middles they are a band again."""
    band = np.zeros((256, 256), dtype=np.float32)
    for row in range(256):
        band[row, max(0, row - 15) : row + 1] = 1
    shuffled = csr(band[np.random.default_rng(0).permutation(256)])
    assert check(shuffled, 32, 32).of_tile.size >= 48
    assert check(shuffled, 32, 32, sort_rows=True).of_tile.size <= 16


@pytest.mark.parametrize("height", [16, 64, 128])
@pytest.mark.parametrize("density", [0.3, 0.05, 0.005])
def test_expected_tiles_are_near_where_nonzeros_lie_anywhere(height: int, density: float) -> None:
    matrix = random_uniform(1024, 2000, density, seed=1)
    made = Panels.of(matrix, height, 64).of_tile.size
    assert expected_tiles(Features.of(matrix), height, 64) == pytest.approx(made, rel=0.1)


def test_expected_tiles_are_near_in_a_band() -> None:
    dense = np.zeros((1024, 1024), dtype=np.float32)
    for row in range(1024):
        dense[row, max(0, row - 127) : row + 1] = 1
    matrix = csr(dense)
    made = Panels.of(matrix, 64, 64).of_tile.size
    assert expected_tiles(Features.of(matrix), 64, 64) == pytest.approx(made, rel=0.2)


def test_nothing_is_expected_of_an_empty_pattern() -> None:
    assert expected_tiles(Features.of(matrices()["no_nonzeros"]), 16, 64) == 0
