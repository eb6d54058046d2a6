"""Products with a mask of blocks by PyTorch alone, where no kernel of ours runs or where dense ones take less time."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.block_masks import new_state
from sparsegen.integrations.torch.blocks.mask_launches import blocks_of, draw_on, expanded
from sparsegen.integrations.torch.calls.wide import WIDE
from sparsegen.matrix.block_mask_draw import MaskDraw
from sparsegen.operators import DsdProblem, DsdTransposedProblem, Epilogue, MaskedProblem, Rest, SddProblem


def plain(
    problem: MaskedProblem,
    scale: float,
    first: Tensor,
    second: Tensor,
    *rest: Tensor | None,
    out: Tensor | None = None,
) -> Tensor:
    """The product of tensors of the problem; on the CPU 16-bit numbers are multiplied and summed as float32.

    Args:
        first, second: the dense operands in their order, W as out × in features.
        rest: a bias, if the operator takes one, and the mask's words.
        out: the result's tensor; by default a new one.
    """
    *biases, words = rest
    assert words is not None
    wide = first.dtype if first.is_cuda or first.dtype in WIDE else torch.float32
    left, right = first.detach().to(wide), second.detach().to(wide)
    if isinstance(problem, SddProblem):
        dead = out.to(wide) if out is not None and problem.rest is Rest.KEPT else None
        result = where_live(problem, words, _product(left, right, scale), dead)
    elif isinstance(problem, DsdTransposedProblem):
        result = _product(right.t(), where_live(problem, words, left), scale)
    else:
        assert isinstance(problem, DsdProblem)
        bias = biases[0] if biases else None
        added = None if bias is None else bias.detach().to(wide)
        result = _product(where_live(problem, words, left), right.t(), scale, added)
        if problem.epilogue is Epilogue.BIAS_RELU:
            result = result.relu_()
    return result.to(first.dtype) if out is None else out.copy_(result)


def where_live(problem: MaskedProblem, words: Tensor, given: Tensor, dead: Tensor | None = None) -> Tensor:
    """A matrix over which the problem's mask lies, with zeros or with another one's elements in dead blocks."""
    live, sides, shape = blocks_of(words, problem.mask_layout), _sides(problem), (problem.m, problem.k)
    if any(size % side for size, side in zip(shape, sides, strict=True)):
        return torch.where(expanded(live, sides, shape), given, 0 if dead is None else dead)
    tiles = live.shape[0], sides[0], live.shape[1], sides[1]
    other = 0 if dead is None else dead.reshape(tiles)
    return torch.where(live[:, None, :, None], given.reshape(tiles), other).reshape(shape)


def drawn_words(problem: MaskedProblem, device: torch.device) -> Tensor:
    """Draws a mask of the problem's density, by another generator than PyTorch's own."""
    generator = torch.Generator(device)
    generator.manual_seed(0)
    draw = MaskDraw(1 - problem.density.share)
    return draw_on(new_state(device, generator), problem.mask_layout, draw)


def _product(left: Tensor, right: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """scale · left · right + bias, rounded once."""
    if bias is None:
        return torch.addmm(left.new_zeros(()), left, right, beta=0, alpha=scale)
    return torch.addmm(bias, left, right, alpha=scale)


def _sides(problem: MaskedProblem) -> tuple[int, int]:
    return problem.block.rows, problem.block.columns
