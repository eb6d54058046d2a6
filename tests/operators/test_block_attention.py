"""The reference of attention by blocks, its LSE, their bounds, and what its operator refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparsegen.errors import OperandError
from sparsegen.matrix.block_mask import BlockMask
from sparsegen.operators import Band, BlockAttentionOperator, BlockAttentionProblem, MasksOf, TokenOrder
from sparsegen.verify.bounds import worst_error

SHAPE = (37, 52)


def problem_of(**options: Any) -> BlockAttentionProblem:
    usual = {"kv_heads": 2, "group": 2, "head_dim": 16, "dtype": "float16", "block": "16x16", "density": 0.4}
    return BlockAttentionProblem.of(SHAPE, **usual | options)


def place_by_place(problem: BlockAttentionProblem, operands: dict[str, Any]) -> tuple[Any, Any]:
    """O and the LSE by a loop over items, heads and queries, in float64."""
    arrays = {}
    for name, heads in (("q", problem.heads), ("k", problem.kv_heads), ("v", problem.kv_heads)):
        real = problem.dtype.from_storage(operands[name]).astype(np.float64)
        shape = problem.order.shape(heads, SHAPE[name != "q"], problem.head_dim)
        real = real.reshape(problem.batch, *shape)
        arrays[name] = real if problem.order is TokenOrder.HEADS else real.swapaxes(1, 2)
    least, most, sinks = (int(word) for word in operands["band"])
    out = np.zeros((problem.batch, problem.heads, SHAPE[0], problem.head_dim))
    lse = np.full(out.shape[:3], -np.inf)
    for item, head, i in np.ndindex(*lse.shape):
        seen = [j for j in range(SHAPE[1]) if j - i <= most and (j - i >= least or j < sinks)]
        if problem.has_mask:
            words = operands["mask"].reshape(-1, problem.mask_layout.words)
            which = item * problem.masks.are_of_items
            if problem.masks.are_of_heads:
                which = which * problem.heads + head
            blocks = problem.mask_of(words[which]).blocks()
            seen = [j for j in seen if blocks[i // problem.block.rows, j // problem.block.columns]]
        if seen:
            of_key = head // problem.group
            powers = float(operands["scale"][0]) * (
                arrays["k"][item, of_key, seen] @ arrays["q"][item, head, i]
            )
            weights = np.exp(powers - powers.max())
            out[item, head, i] = weights @ arrays["v"][item, of_key, seen] / weights.sum()
            lse[item, head, i] = powers.max() + np.log(weights.sum())
    if problem.order is TokenOrder.TOKENS:
        out = out.swapaxes(1, 2)
    return out, lse


@pytest.mark.parametrize("masks", MasksOf)
@pytest.mark.parametrize("order", TokenOrder)
@pytest.mark.parametrize(("span", "batch"), [("full", 1), ("causal", 3), ("causal:9+3", 1)])
def test_it_agrees_with_a_loop(masks: MasksOf, order: TokenOrder, span: str, batch: int) -> None:
    problem = problem_of(masks=masks, order=order, span=span, batch=batch)
    operands = problem.random_operands(np.random.default_rng(3), 0)
    found = problem.reference(problem.without_pattern, operands)
    lse = problem.written_references(problem.without_pattern, operands)["lse"]
    right, right_lse = place_by_place(problem, operands)
    np.testing.assert_allclose(found.exact, right.reshape(found.exact.shape), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(lse.exact, right_lse.reshape(lse.exact.shape), rtol=1e-9)
    assert worst_error(lse, lse.exact.astype(np.float32)) <= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_within_the_bound_and_a_hidden_key_is_not(dtype: str) -> None:
    problem = problem_of(dtype=dtype, masks="nobody")
    operands = problem.random_operands(np.random.default_rng(5), 0)
    reference = problem.reference(problem.without_pattern, operands)
    assert worst_error(reference, problem.dtype.to_storage(reference.exact)) <= 1
    without_last = operands | {"band": np.array([-100, SHAPE[1] - 2 - SHAPE[0] + 1, 0], np.int32)}
    wrong = problem.reference(problem.without_pattern, without_last).exact
    assert worst_error(reference, problem.dtype.to_storage(wrong)) > 1


def test_scores_of_random_operands_grow_and_shrink_over_the_keys() -> None:
    problem = problem_of(masks="nobody", head_dim=64)
    operands = problem.random_operands(np.random.default_rng(0), 0)
    q, k = (problem.dtype.from_storage(operands[name]).astype(np.float64) for name in "qk")
    scores = q[0] @ k[0].T * float(operands["scale"][0])
    grown = scores[:, -8:].mean(axis=1) - scores[:, :8].mean(axis=1)
    assert grown[::3].min() > 8 and grown[1::3].max() < -8


class _NoLauncher:
    def run(self, operands: tuple[Any, ...], out: Any, stream: Any) -> Any:
        return operands


def test_masks_that_do_not_fit_are_refused() -> None:
    problem = problem_of(masks="all")
    call = BlockAttentionOperator(problem, _NoLauncher())  # type: ignore[arg-type]
    mask = BlockMask.from_blocks(np.ones((3, 4), np.bool_), (16, 16), SHAPE)
    assert call(1, 2, 3, mask)[3] is mask.words
    other = BlockMask.from_blocks(np.ones((2, 4), np.bool_), (32, 16), SHAPE)
    with pytest.raises(
        OperandError, match="expected 37 × 52 places in blocks of 16 × 16, got 37 × 52 in blocks of 32"
    ):
        call(1, 2, 3, other)
    broken = mask.words.copy()
    broken[0] ^= np.uint64(1)
    with pytest.raises(OperandError, match="mask: the four parts of the buffer contradict each other"):
        call(1, 2, 3, broken)
    without = BlockAttentionOperator(problem_of(masks="nobody"), _NoLauncher())  # type: ignore[arg-type]
    assert len(without(1, 2, 3)) == 6
    with pytest.raises(OperandError, match="mask: expected none"):
        without(1, 2, 3, mask)


def test_the_expected_share_is_what_masks_and_bands_leave() -> None:
    problem = problem_of(masks="all", density=0.5, span="causal@start")
    i, j = np.indices(SHAPE)
    assert problem.live_share == 0.5 * (j <= i).mean()
    operands = problem.random_operands(np.random.default_rng(1), 0)
    live = problem.mask_of(operands["mask"]).expand() & (j <= i)
    assert problem.computed_share(problem.without_pattern, operands) == pytest.approx(
        live.mean() / problem.live_share
    )
    np.testing.assert_array_equal(
        problem.kept({})["band"], Band.of(*SHAPE, causal=True, from_start=True).words
    )
