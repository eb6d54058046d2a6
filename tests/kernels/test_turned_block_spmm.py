"""`turned_block_spmm`: what it packs, what NaN in B reaches, and that it is no first choice until it was measured."""

from __future__ import annotations

import numpy as np
import pytest
from contract_matrices import csr, matrices

import sparsegen
from sparsegen.kernels.layouts.small_blocks import AREA, CHUNK, MASK_BITS, SIDE, TOGETHER
from sparsegen.kernels.layouts.tensor_tiles import swizzled_places
from sparsegen.kernels.turned_block_spmm import FAMILY
from sparsegen.operators import DType, SpmmProblem


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
        config={"tile_m": 128, "cluster": 1},
        device="emulator",
    )
    wanted = np.repeat([np.nan, SIDE, 0.0], SIDE)[:, None]
    np.testing.assert_array_equal(operator(b=b), np.broadcast_to(wanted, (96, 8)).astype(np.float16))
