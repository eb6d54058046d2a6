"""Live blocks of tensors by a packed mask; by PyTorch's own operations where no kernel of ours runs."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_launches import expanded
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.matrix.block_mask import grid
from sparsegen.plan.live_blocks import LiveBlocks
from sparsegen.plan.where_live import Dead


class LiveTensorBlocks(LiveBlocks):
    """The live blocks of matrices of one shape and dtype; a capture that no call came before gets them by PyTorch."""

    def elsewhere(self, y: Tensor, x: Tensor | None, words: Tensor, dead: Dead) -> Tensor:
        """Writes to Y by PyTorch, which expands the mask."""
        live = expanded(blocks_of(words, grid(self._shape, self._block)), self._block, self._shape)
        return y.copy_(torch.where(live, y if x is None else x, 0 if dead is Dead.ZERO else y))
