"""The buffers of masks of blocks by PyTorch alone: without a device of ours, and in programs without sparsegen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.matrix.bits import WORD_BITS, words_for
from sparsegen.plan.block_masks import Largest


def packed_blocks(live: Tensor) -> Tensor:
    """uint64, ... × words: the masks of live blocks (bools, ... × rows × columns), as `sparsegen.matrix.block_mask`."""
    parts = []
    for side in (live, live.mT):
        order = side.sum(-1).argsort(dim=-1, descending=True, stable=True)
        rows, columns = side.shape[-2:]
        ranked = torch.take_along_dim(side, order[..., None], -2).long()
        bits = functional.pad(ranked, (0, words_for(columns) * WORD_BITS - columns))
        places = torch.arange(WORD_BITS, device=live.device)
        words = (bits.unflatten(-1, (-1, WORD_BITS)) << places).sum(-1)  # no two share a bit
        pairs = functional.pad(order, (0, rows % 2)).unflatten(-1, (-1, 2))  # int32, two a word
        parts += [words.flatten(-2), pairs[..., 0] | pairs[..., 1] << WORD_BITS // 2]
    return torch.cat(parts, -1).view(torch.uint64)


def largest_blocks(scores: Tensor, among: Largest, live: int) -> Tensor:
    """The buffers of the masks of the ``live`` blocks with the largest scores; see `mask_launches.largest_on`."""
    scores = scores.detach().float()
    lines = scores if among is Largest.ROWS else scores.flatten(-2)
    lines = lines.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ordered, places = lines.sort(dim=-1, descending=True, stable=True)
    kept = ordered[..., :live] > -torch.inf
    found = torch.zeros_like(lines, dtype=torch.bool).scatter(-1, places[..., :live], kept)
    return packed_blocks(found.reshape(scores.shape))
