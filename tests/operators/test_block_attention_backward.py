"""The operator of attention's gradients by blocks: reference beside PyTorch-like formulas, options, dead rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparsegen.errors import OperandError
from sparsegen.operators import (
    BlockAttentionBackwardOperator,
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    DType,
    MasksOf,
    TokenOrder,
)
from sparsegen.system.numpy_types import Array
from sparsegen.verify.bounds import worst_error

SHAPE = (35, 50)
STEP = 1e-4


def problem_of(**options: Any) -> BlockAttentionBackwardProblem:
    usual = {"kv_heads": 2, "group": 2, "head_dim": 16, "dtype": "float16", "block": "16x16", "density": 0.5}
    return BlockAttentionBackwardProblem.of(SHAPE, **usual | options)


def forward(problem: BlockAttentionBackwardProblem, operands: dict[str, Array]) -> Array:
    """O in float64, of float64 operands."""
    fields = {name: getattr(problem, name) for name in problem.fields}
    same = replace(BlockAttentionProblem(**fields), dtype=DType.FLOAT32)
    return same.reference(same.without_pattern, operands).exact


def in_float64(problem: BlockAttentionBackwardProblem, seed: int) -> dict[str, Array]:
    """Operands whose O and LSE are exact for the stored Q, K and V."""
    operands = problem.random_operands(np.random.default_rng(seed), 0)
    exact = dict(operands)
    for name in ("q", "k", "v", "o", "do"):
        exact[name] = problem.dtype.from_storage(operands[name]).astype(np.float64)
    return exact


@pytest.mark.parametrize("masks", MasksOf)
@pytest.mark.parametrize("order", TokenOrder)
@pytest.mark.parametrize(("span", "batch"), [("full", 1), ("causal", 2), ("causal:6+2", 1)])
def test_gradients_are_what_differences_give(
    masks: MasksOf, order: TokenOrder, span: str, batch: int
) -> None:
    problem = replace(problem_of(masks=masks, order=order, span=span, batch=batch), dtype=DType.FLOAT32)
    operands = in_float64(problem, 3)
    operands["o"] = forward(problem, operands)
    found = {"q": problem.reference(problem.without_pattern, operands)}
    written = problem.written_references(problem.without_pattern, operands)
    found |= {"k": written["dk"], "v": written["dv"]}
    rng = np.random.default_rng(7)
    for name, gradient in found.items():
        direction = rng.standard_normal(operands[name].shape)
        ahead, behind = (
            forward(problem, operands | {name: operands[name] + sign * STEP * direction}) for sign in (1, -1)
        )
        change = np.sum(operands["do"] * (ahead - behind)) / (2 * STEP)
        np.testing.assert_allclose(np.sum(gradient.exact * direction), change, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rounded_result_is_right_and_one_without_the_last_key_is_not(dtype: str) -> None:
    problem = problem_of(dtype=dtype, masks="nobody")
    operands = problem.random_operands(np.random.default_rng(5), 0)
    without_last = operands | {"band": np.array([-100, SHAPE[1] - 2 - (SHAPE[0] - 1), 0], np.int32)}
    right, wrong = (
        {"dq": problem.reference(problem.without_pattern, given)}
        | problem.written_references(problem.without_pattern, given)
        for given in (operands, without_last)
    )
    for name, reference in right.items():
        assert worst_error(reference, problem.dtype.to_storage(reference.exact)) <= 1
        assert worst_error(reference, problem.dtype.to_storage(wrong[name].exact)) > 1


def test_queries_that_see_nothing_have_no_part_in_gradients() -> None:
    problem = problem_of(masks="nobody", span="causal@start")
    operands = problem.random_operands(np.random.default_rng(1), 0)
    operands["band"] = np.array([-(1 << 30), -3, 0], np.int32)  # the first three queries see no key
    operands["lse"][:, :3] = -np.inf
    operands["o"][:, :3] = 0
    found = problem.reference(problem.without_pattern, operands).exact
    assert not found[:, :3].any() and found[:, 3:].any()
    for reference in problem.written_references(problem.without_pattern, operands).values():
        assert np.isfinite(reference.exact).all()


def test_a_mask_where_nobody_has_one_is_refused() -> None:
    operator = BlockAttentionBackwardOperator.__new__(BlockAttentionBackwardOperator)
    operator.problem = problem_of(masks="nobody")
    with pytest.raises(OperandError, match="expected none"):
        operator(None, None, None, None, None, None, mask=np.zeros(4, np.uint64))
