"""Products with masks of blocks: what is left of the result where the mask is dead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import OperandError
from sparsegen.masks import BlockMask
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DType,
    MaskBlock,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    Rest,
    SddProblem,
)

M, K, N = 40, 72, 24
KEPT = SddProblem(M, K, N, DType.FLOAT16, Block(16, 32), Density(0.5), rest=Rest.KEPT)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_buffer_that_no_mask_has_reaches_no_kernel(batch: int) -> None:
    p = DsdProblem(M, K, N, DType.FLOAT16, Block(16, 32), Density(0.5), batch=batch)
    given = p.random_operands(np.random.default_rng(0), 0)
    operator = sparsegen.prepare(problem=p, device="emulator")
    operator(given["x"], given["w"], given["mask"])
    beyond_columns = given["mask"].copy()
    beyond_columns[..., 0] |= np.uint64(1 << 40)
    beyond = np.full_like(given["mask"], 2**64 - 1)  # blocks and rows that are not there
    with pytest.raises(OperandError, match=r"mask: .*no permutation"):
        operator(given["x"], given["w"], beyond)
    with pytest.raises(OperandError, match=r"mask: .*contradict"):
        operator(given["x"], given["w"], beyond_columns)
    with pytest.raises(OperandError, match="mask: expected shape"):
        operator(given["x"], given["w"], given["mask"][..., :-1])


def test_dead_blocks_cost_no_stores() -> None:
    filled, kept = SddProblem(M, K, N, DType.FLOAT16), SddProblem(M, K, N, DType.FLOAT16, rest=Rest.KEPT)
    assert filled.cost(0).bytes - kept.cost(0).bytes == M * K * 2 // 2
    assert filled.result(0).is_updated is False and kept.result(0).is_updated


def test_what_is_kept_is_nan() -> None:
    given = KEPT.random_operands(np.random.default_rng(0), 0)
    exact = KEPT.reference(KEPT.without_pattern, given).exact
    live = KEPT.mask_of(given).expand()
    assert live.any() and not live.all()
    np.testing.assert_array_equal(np.isnan(exact), ~live)


@pytest.mark.parametrize(
    "blocks", [np.zeros((3, 3)), np.eye(3), np.ones((3, 3))], ids=("none", "some", "all")
)
def test_an_array_keeps_what_it_had(blocks: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    d, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((M, N), (K, N)))
    mask = BlockMask.from_blocks(blocks > 0, (16, 32), (M, K))
    found = sparsegen.prepare(problem=KEPT, device="emulator")
    with pytest.raises(OperandError, match="pass the array that has them as out="):
        found(d, w, mask)
    out = np.full((M, K), 7, np.float16)
    assert found(d, w, mask, out=out) is out
    live = mask.expand()
    assert (out[~live] == 7).all()
    np.testing.assert_allclose(out[live], (d.astype(float) @ w.T.astype(float))[live], rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize(
    "problem",
    [
        DsdProblem(16, 16, 8, block=Block(16, 16), density=Density(0.001)),
        SddProblem(16, 16, 8, block=Block(16, 16), density=Density(0.001), batch=3),
        MaskedConv2dProblem(4, 4, 2, 2, mask_block=MaskBlock(4, 4), density=Density(0.001)),
        MaskedConv2dWeightsProblem(4, 4, 2, 2, 1, mask_block=MaskBlock(4, 4), density=Density(0.001)),
    ],
    ids=str,
)
def test_operands_that_are_drawn_have_a_live_block(problem: Any) -> None:
    """Masks with few blocks would often be all dead, and any kernel right."""
    for seed in range(20):
        operands = problem.random_operands(np.random.default_rng(seed), 0)
        reference = problem.reference(problem.without_pattern, operands)
        assert np.count_nonzero(reference.exact)
