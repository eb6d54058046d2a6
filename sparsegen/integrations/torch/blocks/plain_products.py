"""Products with a mask of blocks by PyTorch alone, where no kernel of ours runs."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_launches import blocks_of, expanded
from sparsegen.integrations.torch.pattern.plain import WIDE
from sparsegen.operators import DsdProblem, DsdTransposedProblem, Epilogue, MaskedProblem, Rest, SddProblem


def plain(
    problem: MaskedProblem,
    scale: float,
    first: Tensor,
    second: Tensor,
    *rest: Tensor | None,
    out: Tensor | None = None,
) -> Tensor:
    """The product of tensors of the problem; 16-bit numbers are multiplied and summed as float32.

    Args:
        first, second: the dense operands in their order, W as out × in features.
        rest: a bias, if the operator takes one, and the mask's words.
        out: the result's tensor; by default a new one.
    """
    *biases, words = rest
    assert words is not None
    wide = first.dtype if first.dtype in WIDE else torch.float32
    left, right = first.detach().to(wide), second.detach().to(wide)
    block = problem.block.rows, problem.block.columns
    live = expanded(blocks_of(words, problem.mask_layout), block, (problem.m, problem.k))
    if isinstance(problem, SddProblem):
        dead = out.to(wide) if out is not None and problem.rest is Rest.KEPT else 0
        result = torch.where(live, left @ right * scale, dead)
    elif isinstance(problem, DsdTransposedProblem):
        result = right.t() @ torch.where(live, left, 0) * scale
    else:
        assert isinstance(problem, DsdProblem)
        result = torch.where(live, left, 0) @ right.t() * scale
        for bias in biases:
            result = result if bias is None else result + bias.detach().to(wide)
        if problem.epilogue is Epilogue.BIAS_RELU:
            result = result.relu()
    return result.to(first.dtype) if out is None else out.copy_(result)
