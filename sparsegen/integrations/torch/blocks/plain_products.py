"""Products with a mask of blocks by PyTorch alone, where no kernel of ours runs or where dense ones take less time."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.block_masks import new_state
from sparsegen.integrations.torch.blocks.mask_launches import draw_on
from sparsegen.integrations.torch.blocks.where_live import LiveBlocks
from sparsegen.integrations.torch.pattern.plain import WIDE
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask_draw import MaskDraw
from sparsegen.operators import DsdProblem, DsdTransposedProblem, Epilogue, MaskedProblem, Rest, SddProblem


class PlainProduct:
    """The product of tensors of one problem: one launch that makes the dead blocks zeros, and PyTorch's product.

    On the CPU 16-bit numbers are multiplied and summed as float32.
    """

    def __init__(self, problem: MaskedProblem, scale: float, device: Device | None) -> None:
        """
        Args:
            device: where our kernels run for its tensors; None without one.
        """
        self._problem, self._scale = problem, scale
        block = problem.block.rows, problem.block.columns
        self._live = LiveBlocks((problem.m, problem.k), block, device)

    def __call__(
        self, first: Tensor, second: Tensor, *rest: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """
        Args:
            first, second: the dense operands in their order, W as out × in features.
            rest: a bias, if the operator takes one, and the mask's words.
            out: the result's tensor, contiguous; by default a new one.
        """
        *biases, words = rest
        assert words is not None
        problem, scale, live = self._problem, self._scale, self._live
        wide = first.dtype if first.is_cuda or first.dtype in WIDE else torch.float32
        left, right = first.detach(), second.detach().to(wide)
        if isinstance(problem, SddProblem):
            result = _product(left.to(wide), right, scale).to(first.dtype)
            if out is not None and problem.rest is Rest.KEPT:
                return live.into(out, result, words)
            result = live.without_dead(result, words)
        elif isinstance(problem, DsdTransposedProblem):
            result = _product(right.t(), live.of(left, words).to(wide), scale)
        else:
            assert isinstance(problem, DsdProblem)
            bias = biases[0] if biases else None
            added = None if bias is None else bias.detach().to(wide)
            result = _product(live.of(left, words).to(wide), right.t(), scale, added)
            if problem.epilogue is Epilogue.BIAS_RELU:
                result = result.relu_()
        result = result.to(first.dtype)
        return result if out is None else out.copy_(result)


def drawn_words(problem: MaskedProblem, device: torch.device) -> Tensor:
    """Draws a mask of the problem's density, by another generator than PyTorch's own."""
    generator = torch.Generator(device)
    generator.manual_seed(0)
    draw = MaskDraw(1 - problem.density.share)
    return draw_on(new_state(device, generator), problem.mask_layout, draw)


def _product(left: Tensor, right: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """scale · left · right + bias, rounded once."""
    if bias is None:
        return torch.addmm(left.new_empty(()), left, right, beta=0, alpha=scale)  # of which nothing is read
    return torch.addmm(bias, left, right, alpha=scale)
