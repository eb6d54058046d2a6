"""Live blocks of places, full or partial, by PyTorch alone: without a device of ours, or in programs without sparsegen.

The operators of `place_operators` find the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.integrations.torch.blocks.plain_masks import packed_blocks
from sparsegen.matrix.partial_blocks import FULL, words_of_block
from sparsegen.system.integers import ceil_div

Found = tuple[Tensor, Tensor, Tensor]


def document_blocks(ids: Tensor, key_ids: Tensor, block_rows: int, block_columns: int) -> Found:
    """The buffers of the masks of documents, and the numbers and bits of their partial blocks."""
    block = block_rows, block_columns
    q, k = (tensor if tensor.dim() == 1 else tensor[:, None] for tensor in (ids, key_ids))
    (q_least, q_first, q_most), (k_least, k_first, k_most) = (
        _ends(tensor, side) for tensor, side in zip((q, k), block, strict=True)
    )
    live = (q_first[..., None] <= k_most[..., None, :]) & (k_first[..., None, :] <= q_most[..., None])
    is_one = ((q_least == q_most) & (q_least >= 0))[..., None] & (k_least == k_most)[..., None, :]
    elements = (q[..., :, None] == k[..., None, :]) & (q >= 0)[..., None]
    count = live.numel()
    numbers = torch.arange(count, dtype=torch.int32, device=ids.device).view(live.shape)
    numbers = numbers.where(live & ~is_one, FULL).where(live, count)
    bits = packed_bits(functional.pad(tiles(elements, block).reshape(count, *block), (0, 0, 0, 0, 0, 1)))
    return packed_blocks(live), numbers, bits


def _ends(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The least id of each block, the least that is no padding, and the greatest; ... × blocks."""
    missing = -ids.shape[-1] % size
    padded = torch.cat((ids, ids[..., -1:].expand(*ids.shape[:-1], missing)), -1).unflatten(-1, (-1, size))
    documents = padded.where(padded >= 0, torch.iinfo(ids.dtype).max)
    return padded.amin(-1), documents.amin(-1), padded.amax(-1)


def mark_places(elements: Tensor, block_rows: int, block_columns: int, wants_bits: bool) -> Found:
    """The blocks in which a place lives; if asked for, the numbers and bits of all blocks."""
    block = block_rows, block_columns
    found = tiles(elements, block)
    live = found.flatten(-2).any(-1)
    if not wants_bits:
        words = words_of_block(block)
        return (
            live,
            live.new_empty((0,), dtype=torch.int32),
            live.new_empty((0, words), dtype=torch.uint64),
        )
    has_dead = tiles(~elements, block).flatten(-2).any(-1)
    numbers = torch.arange(live.numel(), dtype=torch.int32, device=elements.device).view(live.shape)
    return live, numbers.where(has_dead, FULL), packed_bits(found.reshape(live.numel(), *block))


def mark_branches(parents: Tensor, context: int) -> Tensor:
    """Drafted tokens × (context + these), bool: each sees the context, itself and those before it on its branch."""
    tokens = parents.shape[-1]
    own = torch.arange(tokens, device=parents.device)
    reached = (parents[..., None] == own) | (own[:, None] == own)
    for _ in range(max(1, (tokens - 1).bit_length())):  # branches twice as long with each
        wide = reached.float()
        reached = wide @ wide > 0
    if parents.dim() == 2:
        reached = reached[:, None]
    return functional.pad(reached, (context, 0), value=True)


def tiles(elements: Tensor, block: tuple[int, int]) -> Tensor:
    """Bools by blocks, ... × rows × columns × their queries × their keys; false past the ends."""
    rows, columns = (ceil_div(size, side) for size, side in zip(elements.shape[-2:], block, strict=True))
    missing = 0, columns * block[1] - elements.shape[-1], 0, rows * block[0] - elements.shape[-2]
    padded = functional.pad(elements, missing)
    return padded.unflatten(-1, (columns, block[1])).unflatten(-3, (rows, block[0])).transpose(-3, -2)


def packed_bits(places: Tensor) -> Tensor:
    """Words (uint64, blocks × words of a block) of bools, blocks × queries × keys."""
    weights = torch.tensor([1 << i for i in range(8)], dtype=torch.uint8, device=places.device)
    groups = places.reshape(places.shape[0], -1, 8)
    packed = torch.where(groups, weights, 0).sum(-1, dtype=torch.uint8)
    return packed.contiguous().view(torch.int64).view(torch.uint64)
