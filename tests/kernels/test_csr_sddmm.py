"""Division of rows by `csr_sddmm`, beyond the contract tests."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.kernels.sddmm.csr_sddmm import cut
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SddmmProblem
from sparsegen.testing.matrices import matrices

FAMILY = family("csr_sddmm")
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)


@pytest.mark.parametrize("name", ["empty_rows", "huge_row", "every_row_length", "no_nonzeros", "no_rows"])
@pytest.mark.parametrize("strip", [4, 64])
def test_strips_cover_every_nonzero_once_and_stay_in_their_rows(name: str, strip: int) -> None:
    matrix = matrices()[name]
    strips = cut(matrix, strip)
    covered = [i for _, first, count in strips for i in range(first, first + count)]
    assert covered == list(range(matrix.nnz))
    for row, first, count in strips:
        assert 1 <= count <= strip
        assert matrix.row_offsets[row] <= first and first + count <= matrix.row_offsets[row + 1]


def test_sorted_strips_fall_in_length() -> None:
    matrix = matrices()["every_row_length"]
    problem = SddmmProblem(*matrix.shape, 32)
    counts = {
        order: FAMILY.pack(problem, FAMILY.config(row_order=order), matrix).arrays["strips"][:, 2]
        for order in ("natural", "sorted")
    }
    assert np.all(np.diff(counts["sorted"]) <= 0) and np.any(np.diff(counts["natural"]) > 0)
    assert sorted(counts["sorted"]) == sorted(counts["natural"])


def test_heuristics_fill_the_device_and_fit_the_rows() -> None:
    def heuristic(m: int, n: int, k: int, density: float, dtype: DType = DType.FLOAT32):  # type: ignore[no-untyped-def]
        matrix = random_uniform(m, n, density, seed=0)
        return FAMILY.heuristic(SddmmProblem(m, n, k, dtype), Features.of(matrix), H100)

    assert heuristic(4096, 4096, 256, 0.1).strip == 16
    assert heuristic(4096, 4096, 256, 0.001).strip == 4, "rows of four nonzeros"
    assert heuristic(64, 1024, 256, 0.1).strip == 4, "a small grid"
    assert heuristic(64, 1024, 256, 0.1, DType.FLOAT16).vector_width == 8
    assert heuristic(64, 1024, 8, 0.1).threads_per_strip == 2, "short dot products"
