"""`turned_block_spmm`: what it packs, what NaN in B reaches, and what its times are expected to be."""

from __future__ import annotations

import numpy as np
import pytest
from tuning_samples import H100

import sparsegen
from sparsegen.kernels import families
from sparsegen.kernels.spmm.small_blocks import AREA, CHUNK, MASK_BITS, SIDE, TOGETHER
from sparsegen.kernels.spmm.tensor_tiles import swizzled_places
from sparsegen.kernels.spmm.turned_block_spmm import FAMILY
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, SpmmProblem
from sparsegen.testing.matrices import csr, matrices


@pytest.mark.parametrize("tile_m", [64, 256])
@pytest.mark.parametrize("name", [name for name, matrix in matrices().items() if matrix.shape[1]])
def test_blocks_hold_every_nonzero_and_blocks_without_any_are_left_out(name: str, tile_m: int) -> None:
    matrix = matrices()[name]
    m, k = matrix.shape
    packed = FAMILY.pack(SpmmProblem(m, k, 8, DType.FLOAT16), FAMILY.config(tile_m=tile_m), matrix)
    count, arrays = packed.sizes["row_tile_count"], packed.arrays
    offsets, steps = arrays["offsets"], arrays["steps"].reshape(-1, TOGETHER + 2)
    assert len(steps) == offsets[-1] + 1, "a stage's numbers are read ahead"
    stored = arrays["values"].view(np.float16)
    stored = stored[: stored.size // AREA * AREA].reshape(-1, AREA)[:, swizzled_places(SIDE, SIDE, CHUNK)]
    rebuilt = np.zeros((max(1, count) * tile_m, -(-k // SIDE) * SIDE), dtype=np.float16)
    work, number = [], 0
    for rank, tile in enumerate(arrays["row_tiles"][:count]):
        work.append(0)
        for *panels, masks, first in steps[slice(*offsets[rank : rank + 2])]:
            assert first == number
            for slot, panel in enumerate(panels):
                mask = masks >> MASK_BITS * slot & 0xFF
                work[-1] += int(mask > 0)
                for block in range(MASK_BITS):
                    if mask >> block & 1:
                        row = tile * tile_m + block * SIDE
                        assert stored[number].any()
                        place = slice(row, row + SIDE), slice(panel * SIDE, (panel + 1) * SIDE)
                        rebuilt[place] = stored[number].reshape(SIDE, SIDE)
                        number, work[-1] = number + 1, work[-1] + 1
    assert work == sorted(work, reverse=True)
    np.testing.assert_array_equal(rebuilt[:m, :k], matrix.to_scipy().toarray().astype(np.float16))


def test_nan_reaches_no_row_of_blocks_that_does_not_meet_it() -> None:
    dense = np.zeros((96, 3 * SIDE), dtype=np.float32)
    dense[:SIDE, : 2 * SIDE] = dense[SIDE : 2 * SIDE, SIDE : 2 * SIDE] = 1.0
    b = np.ones((3 * SIDE, 8), dtype=np.float16)
    b[:SIDE], b[2 * SIDE :] = np.nan, np.inf
    operator = sparsegen.prepare(
        csr(dense),
        n=8,
        dtype=DType.FLOAT16,
        family=FAMILY.name,
        config={"tile_m": 128},
        device="emulator",
    )
    wanted = np.repeat([np.nan, SIDE, 0.0], SIDE)[:, None]
    np.testing.assert_array_equal(operator(b=b), np.broadcast_to(wanted, (96, 8)).astype(np.float16))


# On an H100: side, share of nonzeros, variation and longest of rows, fastest height and its µs, whether first.
MEASURED = [
    (4096, 0.8, 0.043, 3616, 256, 203.5, False),
    (4096, 0.5, 0.092, 2688, 256, 156.1, True),
    (4096, 0.2, 0.176, 1184, 256, 101.5, True),
    (2048, 0.8, 0.069, 1888, 256, 31.7, False),
    (2048, 0.2, 0.236, 704, 256, 20.3, True),
    (1024, 0.8, 0.100, 960, 64, 12.5, False),
]


@pytest.mark.parametrize(("side", "share", "row_cov", "row_max", "height", "us", "first"), MEASURED)
def test_times_are_expected_as_measured_and_it_is_chosen_where_it_was_faster(
    side: int, share: float, row_cov: float, row_max: int, height: int, us: float, first: bool
) -> None:
    full = round(side * side * share / 32**2) * 32**2  # of blocks of 32 by 32
    features = Features(side, side, full, side * share, row_cov, row_max, 1.0)
    problem = SpmmProblem(side, side, side, DType.FLOAT16)
    assert FAMILY.heuristic(problem, features, H100).tile_m == height
    expected = {
        f.name: f.predicted_us(problem, features, H100)
        for f in families().values()
        if f.problem_type is SpmmProblem
        and f.suits(problem, features, f.heuristic(problem, features, H100), H100)
    }
    assert expected[FAMILY.name] == pytest.approx(us, rel=0.08)
    assert (min(expected, key=lambda name: expected[name]) == FAMILY.name) == first
