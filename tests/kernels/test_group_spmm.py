"""`group_spmm`: what its tiles hold, and that rows that share columns need the fewest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import sparsegen
from sparsegen.backends.emulator import device
from sparsegen.bench.patterns.generators import blocks, equal_rows, shared_rows
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.options import DispatchOptions
from sparsegen.errors import ConfigError
from sparsegen.kernels import family
from sparsegen.kernels.layouts.tile_groups import NONE, TILE, in_fragment
from sparsegen.kernels.spmm.group_tiles import group_tiles
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.settings import Settings
from sparsegen.tuning.prediction.targets import named_target
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.shared_layers import shared_layers

FAMILY = family("group_spmm")


def dense_of(matrix: CsrMatrix) -> np.ndarray:
    """Decodes the tiles to their rows and columns."""
    tiles = group_tiles(matrix)
    m, k = matrix.shape
    found = np.zeros((m, k))
    group = np.repeat(np.arange(len(tiles.rows)), np.diff(tiles.first))
    row, column = np.indices((16, 16))
    place = in_fragment(row, column)
    for tile, of in enumerate(group):
        source = tiles.source[tile * TILE + place]
        rows, columns = tiles.rows[of][row], tiles.columns[tile][column]
        real = source != NONE
        assert (rows[real] != NONE).all() and (columns[real] != NONE).all()
        found[rows[real], columns[real]] += matrix.values[source[real]]
    return found


@pytest.mark.parametrize("group", [1, 5, 16, 48])
def test_tiles_hold_the_matrix(group: int) -> None:
    matrix = shared_rows(240, 70, group, 0.3, 1)
    np.testing.assert_array_equal(dense_of(matrix), matrix.to_dense())


def test_rows_that_share_columns_need_the_fewest_tiles() -> None:
    shared, apart = shared_rows(256, 512, 16, 1 / 16, 0), equal_rows(256, 512, 1 / 16, 0)
    assert shared.nnz == apart.nnz == 256 * 32
    assert len(group_tiles(shared).columns) == 16 * 2
    assert len(group_tiles(apart).columns) > 8 * 16 * 2


def test_it_multiplies(emulator_settings: Settings, tmp_path) -> None:  # type: ignore[no-untyped-def]
    matrix = shared_rows(64, 48, 16, 0.25, 3)
    product = sparsegen.prepare(
        matrix, n=24, dtype="float16", family="group_spmm", device="emulator", db=tmp_path / "tuning.db"
    )
    b = np.random.default_rng(0).standard_normal((48, 24)).astype(np.float16)
    right = matrix.to_dense().astype(np.float16).astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(product(b), right, rtol=1e-2, atol=1e-2)
    assert "group_spmm" in product.explain()


def test_scope_in_words() -> None:
    for problem, sentence in (
        (SpmmProblem(64, 64, 8, DType.FLOAT32), "elements .float32. are float16 or bfloat16"),
        (SpmmProblem(64, 64, 8, DType.FLOAT16, Layout.COLUMN), "row-major"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            FAMILY.require_valid(problem, FAMILY.config(), device())


@pytest.mark.parametrize("name", ["nvidia-h100", "nvidia-h200"])
@pytest.mark.parametrize(
    ("matrix", "n", "wins"),
    [
        (shared_rows(4096, 4096, 16, 0.1, 1), 512, True),  # as measured (docs/internals/families.md)
        (shared_rows(4096, 4096, 16, 0.05, 1), 512, True),
        (shared_rows(4096, 4096, 16, 0.1, 1), 64, False),
        (equal_rows(1024, 1024, 0.1, 1), 512, False),
        (
            blocks(1024, 1024, 16, 0.1, 1),
            512,
            False,
        ),  # its rows share columns too, and other families have whole tiles
        (blocks(1024, 1024, 64, 0.5, 1), 512, False),
    ],
)
def test_it_is_found_untuned_where_it_wins(
    matrix: CsrMatrix, n: int, wins: bool, name: str, tmp_path: Path
) -> None:
    target, options = named_target(name), DispatchOptions.of("nearest", "never", None, None)
    assert target is not None
    problem = SpmmProblem(*matrix.shape, n, DType.FLOAT16)
    found = choose(
        Workload.of(problem, matrix), target.device, shared_layers(tmp_path / "tuning.db"), options
    )
    assert (found.family is FAMILY) is wins
