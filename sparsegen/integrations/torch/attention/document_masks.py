"""Masks of blocks of documents and the bits of their partial blocks, as a custom operator."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks.mask_launches import make_on
from sparsegen.integrations.torch.blocks.partial_blocks import packed_bits, tiles
from sparsegen.integrations.torch.blocks.plain_masks import packed_blocks
from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.matrix.block_mask import grid
from sparsegen.matrix.partial_blocks import FULL, words_of_block
from sparsegen.plan.document_blocks import DocumentBlocks, bind_document_blocks
from sparsegen.plan.mask_sources import Given, given

_launches = PlainLaunches(bind_document_blocks)
Found = tuple[Tensor, Tensor, Tensor]


def _find(ids: Tensor, key_ids: Tensor, block_rows: int, block_columns: int) -> Found:
    device, block = kernel_device_of(ids.device), (block_rows, block_columns)
    if device is None:
        return plain_documents(ids, key_ids, block_rows, block_columns)
    ids, key_ids = ids.contiguous(), key_ids.contiguous()
    shape = int(ids.shape[-1]), int(key_ids.shape[-1])
    layout, lead = grid(shape, block), _lead(ids)
    words, numbers, bits = _like(ids, key_ids, block_rows, block_columns)
    if not words.numel():
        return words, numbers, bits
    items = lead[0] if lead else 1
    live = ids.new_empty((*lead, layout.rows, layout.row_words), dtype=torch.uint64)
    find = _launches.of(device, DocumentBlocks(shape, block, items, ids.dtype is torch.int64))
    find(stream_of(ids), *(t.data_ptr() for t in (ids, key_ids, live, numbers, bits)))
    words = make_on(given(Given.BITS), device, ids.device, lead, layout, live.data_ptr())
    return words, numbers, bits


def plain_documents(ids: Tensor, key_ids: Tensor, block_rows: int, block_columns: int) -> Found:
    """The same by PyTorch alone."""
    block = block_rows, block_columns
    q, k = (tensor if tensor.dim() == 1 else tensor[:, None] for tensor in (ids, key_ids))
    (q_least, q_first, q_most), (k_least, k_first, k_most) = (
        _ends(tensor, side) for tensor, side in zip((q, k), block, strict=True)
    )
    live = (q_first[..., None] <= k_most[..., None, :]) & (k_first[..., None, :] <= q_most[..., None])
    is_one = ((q_least == q_most) & (q_least >= 0))[..., None] & (k_least == k_most)[..., None, :]
    elements = (q[..., :, None] == k[..., None, :]) & (q >= 0)[..., None]
    numbers = torch.arange(live.numel(), dtype=torch.int32, device=ids.device).view(live.shape)
    numbers = numbers.where(live & ~is_one, FULL)
    bits = packed_bits(tiles(elements, block).reshape(live.numel(), *block))
    return packed_blocks(live), numbers, bits


def _ends(ids: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The least id of each block, the least that is no padding, and the greatest; ... × blocks."""
    missing = -ids.shape[-1] % size
    padded = torch.cat((ids, ids[..., -1:].expand(*ids.shape[:-1], missing)), -1).unflatten(-1, (-1, size))
    documents = padded.where(padded >= 0, torch.iinfo(ids.dtype).max)
    return padded.amin(-1), documents.amin(-1), padded.amax(-1)


def _lead(ids: Tensor) -> tuple[int, ...]:
    return (int(ids.shape[0]), 1) if ids.dim() == 2 else ()


def _like(ids: Tensor, key_ids: Tensor, block_rows: int, block_columns: int) -> Found:
    block = block_rows, block_columns
    layout, lead = grid((ids.shape[-1], key_ids.shape[-1]), block), _lead(ids)
    blocks = (lead[0] if lead else 1) * layout.rows * layout.columns
    words = ids.new_empty((*lead, layout.words), dtype=torch.uint64)
    numbers = ids.new_empty((*lead, layout.rows, layout.columns), dtype=torch.int32)
    return words, numbers, ids.new_empty((blocks, words_of_block(block)), dtype=torch.uint64)


find_documents = DirectOperator(
    "document_blocks",
    "(Tensor ids, Tensor key_ids, int block_rows, int block_columns) -> (Tensor, Tensor, Tensor)",
    _find,
    fake=_like,
    tensors=2,
)
"""The buffers of the masks of documents, and the numbers and bits of their partial blocks (`PartialBlocks`)."""
