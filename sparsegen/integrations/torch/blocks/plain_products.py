"""Products with a mask of blocks by PyTorch alone, where no kernel of ours runs or where dense ones take less time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_launches import expanded, pack_on
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.integrations.torch.calls.autocast import without_autocast
from sparsegen.integrations.torch.calls.drawn_blocks import drawn_blocks, seeded
from sparsegen.integrations.torch.calls.wide import WIDE
from sparsegen.kernels.base import Device
from sparsegen.matrix.block_mask import grid
from sparsegen.operators import DsdProblem, Layout, MaskedProblem, SddProblem
from sparsegen.plan.live_blocks import LiveBlocks
from sparsegen.plan.tf32 import cut_as_kernels_do
from sparsegen.plan.where_live import Dead


class LiveTensorBlocks(LiveBlocks):
    """The live blocks of matrices of one shape and dtype; a capture that no call came before gets them by PyTorch."""

    def elsewhere(self, y: Tensor, x: Tensor | None, words: Tensor, dead: Dead) -> Tensor:
        """Writes to Y by PyTorch, which expands the mask."""
        live = expanded(blocks_of(words, grid(self._shape, self._block)), self._block, self._shape)
        return y.copy_(torch.where(live, y if x is None else x, 0 if dead is Dead.ZERO else y))


class PlainProduct:
    """The product of tensors of one problem: one launch that makes the dead blocks zeros, and PyTorch's product.

    On GPUs float32 is multiplied in TF32, as our kernels do. On the CPU 16-bit numbers are multiplied and summed as
    float32.
    """

    def __init__(self, problem: MaskedProblem, scale: float, device: Device | None) -> None:
        """
        Args:
            device: where our kernels run for its tensors; None without one.
        """
        self._scale = scale
        self._multiply = cut_as_kernels_do(problem.dense_result, problem.dtype, device)
        block = problem.block.rows, problem.block.columns
        self._live = LiveTensorBlocks((problem.m, problem.k), block, device)
        self._first, self._second = (spec.name for spec in problem.dense_operands())
        self._turns_weight = isinstance(problem, DsdProblem | SddProblem) and problem.w_layout is Layout.ROW

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
        if self._turns_weight:
            second = second.t()
        given = {self._first: first, self._second: second, "mask": words, "scale": self._scale}
        if biases and biases[0] is not None:
            given["bias"] = biases[0]
        with without_autocast(first):
            return self._product(first, given, words, out)

    def _product(
        self, first: Tensor, given: dict[str, Any], words: Tensor | None, out: Tensor | None
    ) -> Tensor:
        if first.is_cuda or first.dtype in WIDE:
            result: Tensor = self._multiply(torch, self._live, given, out)
            return result
        wide = {
            name: one.float() if isinstance(one, Tensor) and one is not words else one
            for name, one in given.items()
        }
        into = None if out is None else out.float()
        found: Tensor = self._multiply(torch, self._live, wide, into).to(first.dtype)
        return found if out is None else out.copy_(found)


def drawn_words(problem: MaskedProblem, device: torch.device) -> Tensor:
    """Draws a mask of the problem's density."""
    layout = problem.mask_layout
    return pack_on(drawn_blocks(problem.density, (layout.rows, layout.columns), seeded(device)))
