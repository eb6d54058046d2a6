"""Masks of small blocks as masks of larger ones, whose live blocks have the bits of the small ones.

A large block of n small ones has one of 2^n patterns, so that a table of bits that does not change serves all masks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from sparsegen.integrations.torch.attention.attention_options import AttentionOptions, Beside
from sparsegen.integrations.torch.blocks.mask_operators import pack_blocks
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.integrations.torch.blocks.plain_places import tiles
from sparsegen.integrations.torch.calls.prepared import is_capturing
from sparsegen.matrix.bits import WORD_BITS
from sparsegen.matrix.block_mask import grid
from sparsegen.matrix.live_blocks import any_live
from sparsegen.matrix.partial_blocks import FULL

SIDE = 64  # of the blocks that the gradients' kernels take


@dataclass(frozen=True, slots=True)
class UnitedBlocks:
    """Large blocks that small ones lie in.

    Attributes:
        small: queries and keys of a block of the mask; powers of two.
        shape: queries and keys that the mask lies over.
    """

    small: tuple[int, int]
    shape: tuple[int, int]

    @classmethod
    def of(cls, options: AttentionOptions, shape: tuple[int, int], more: Beside) -> UnitedBlocks | None:
        """None where there is no mask, where its blocks are large, and where they have bits already."""
        if more.words is None or more.bits is not None or min(options.block) >= SIDE:
            return None
        return cls(options.block, shape)

    @property
    def large(self) -> tuple[int, int]:
        """Queries and keys of a large block."""
        return max(SIDE, self.small[0]), max(SIDE, self.small[1])

    @property
    def inside(self) -> tuple[int, int]:
        """Rows and columns of small blocks in a large one."""
        return self.large[0] // self.small[0], self.large[1] // self.small[1]

    def options(self, options: AttentionOptions) -> AttentionOptions:
        """The options of a call with large blocks: as many live as if small ones were drawn alone."""
        down, across = self.inside
        share = any_live(options.density, down * across)
        return options._replace(block_rows=self.large[0], block_columns=self.large[1], density=share)

    def described(self, more: Beside) -> Beside:
        """Returns what `beside` makes without its data: the sizes that the operator's problem depends on."""
        down, across = self.inside
        return replace(more, bits=torch.empty((1 << (down * across), 0), device="meta"))

    def beside(self, more: Beside) -> Beside:
        """The mask of large blocks and the bits of those that live in part, in the place of the small ones' mask."""
        assert more.words is not None
        live = tiles(blocks_of(more.words, grid(self.shape, self.small)), self.inside).flatten(-2)
        places = torch.arange(live.shape[-1], device=live.device)
        patterns = (live.int() << places).sum(-1, dtype=torch.int32)
        numbers = torch.where(live.all(-1), FULL, patterns)
        table = bits_of_patterns if not is_capturing(live) else bits_of_patterns.__wrapped__
        return replace(
            more,
            words=pack_blocks(live.any(-1)),
            numbers=numbers,
            bits=table(self.small, self.large, live.device),
        )


@cache
def bits_of_patterns(small: tuple[int, int], large: tuple[int, int], device: torch.device) -> Tensor:
    """uint64, patterns × words of a large block: the bits of small blocks, which bits of a pattern's number name.

    A table that CUDA graphs capture belongs to the graph, and is not kept here.
    """
    down, across = large[0] // small[0], large[1] // small[1]
    rows = _words_of_rows(small[1], large[1], device)
    patterns = torch.arange(1 << (down * across), device=device)[:, None]
    of_row = patterns >> torch.arange(down, device=device) * across & (1 << across) - 1
    words = rows[of_row].repeat_interleave(small[0], dim=1)
    return words.flatten(1).view(torch.uint64)


def _words_of_rows(small: int, large: int, device: torch.device) -> Tensor:
    """int64, patterns of a row of small blocks × words of its keys."""
    across = large // small
    shifts = torch.arange(large, device=device) // small
    live = torch.arange(1 << across, device=device)[:, None] >> shifts & 1
    places = torch.arange(WORD_BITS, device=device)
    return (live.view(-1, large // WORD_BITS, WORD_BITS) << places).sum(-1)
