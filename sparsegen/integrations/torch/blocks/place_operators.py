"""Custom operators that find which blocks of places live, as a whole or in part, by documents, bools and trees."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks import plain_places
from sparsegen.integrations.torch.blocks.mask_launches import make_on
from sparsegen.integrations.torch.blocks.plain_places import Found
from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.matrix.block_mask import grid
from sparsegen.matrix.partial_blocks import words_of_block
from sparsegen.plan.mask_sources import Given, given
from sparsegen.plan.partial_blocks import (
    DocumentBlocks,
    bind_branches,
    bind_document_blocks,
    bind_places,
)

BYTES_AT_ONCE = 8  # of bools that a kernel reads
_documents = PlainLaunches(bind_document_blocks)
_places = PlainLaunches(bind_places)
_branches = PlainLaunches(bind_branches)


def _find(ids: Tensor, key_ids: Tensor, block_rows: int, block_columns: int) -> Found:
    device, block = kernel_device_of(ids.device), (block_rows, block_columns)
    if device is None:
        return plain_places.document_blocks(ids, key_ids, block_rows, block_columns)
    ids, key_ids = ids.contiguous(), key_ids.contiguous()
    shape = int(ids.shape[-1]), int(key_ids.shape[-1])
    layout, lead = grid(shape, block), _lead(ids)
    words, numbers, bits = _like(ids, key_ids, block_rows, block_columns)
    if not words.numel():
        return words, numbers, bits
    items = lead[0] if lead else 1
    live = ids.new_empty((*lead, layout.rows, layout.row_words), dtype=torch.uint64)
    find = _documents.of(device, DocumentBlocks(shape, block, items, ids.dtype is torch.int64))
    find(stream_of(ids), *(t.data_ptr() for t in (ids, key_ids, live, numbers, bits)))
    words = make_on(given(Given.BITS), device, ids.device, lead, layout, live.data_ptr())
    return words, numbers, bits


def _mark(elements: Tensor, block_rows: int, block_columns: int, wants_bits: bool) -> Found:
    device, block = kernel_device_of(elements.device), (block_rows, block_columns)
    if device is None:
        return plain_places.mark_places(elements, block_rows, block_columns, wants_bits)
    elements = elements.contiguous()
    if elements.data_ptr() % BYTES_AT_ONCE:
        elements = elements.clone()
    live, numbers, bits = _like_marked(elements, block_rows, block_columns, wants_bits)
    if live.numel():
        shape = int(elements.shape[-2]), int(elements.shape[-1])
        items = elements.numel() // (shape[0] * shape[1])
        found = (numbers.data_ptr(), bits.data_ptr()) if wants_bits else (0, 0)
        mark = _places.of(device, shape, block, items)
        mark(stream_of(elements), elements.data_ptr(), live.data_ptr(), *found)
    return live, numbers, bits


def _mark_branches(parents: Tensor, context: int) -> Tensor:
    device = kernel_device_of(parents.device)
    if device is None:
        return plain_places.mark_branches(parents, context)
    parents, places = parents.long().contiguous(), _like_branches(parents, context)
    if places.numel():
        tokens = parents.shape[-1]
        mark = _branches.of(device, tokens, context, parents.numel() // tokens)
        mark(stream_of(parents), parents.data_ptr(), places.data_ptr())
    return places


def _lead(ids: Tensor) -> tuple[int, ...]:
    return (int(ids.shape[0]), 1) if ids.dim() == 2 else ()


def _like(ids: Tensor, key_ids: Tensor, block_rows: int, block_columns: int) -> Found:
    block = block_rows, block_columns
    layout, lead = grid((ids.shape[-1], key_ids.shape[-1]), block), _lead(ids)
    blocks = (lead[0] if lead else 1) * layout.rows * layout.columns
    words = ids.new_empty((*lead, layout.words), dtype=torch.uint64)
    numbers = ids.new_empty((*lead, layout.rows, layout.columns), dtype=torch.int32)
    return words, numbers, ids.new_empty((blocks + 1, words_of_block(block)), dtype=torch.uint64)


def _like_marked(elements: Tensor, block_rows: int, block_columns: int, wants_bits: bool) -> Found:
    layout = grid((elements.shape[-2], elements.shape[-1]), (block_rows, block_columns))
    live = elements.new_empty((*elements.shape[:-2], layout.rows, layout.columns))
    lead, count = (live.shape, live.numel()) if wants_bits else ((0,), 0)
    words = words_of_block((block_rows, block_columns))
    return (
        live,
        live.new_empty(lead, dtype=torch.int32),
        live.new_empty((count, words), dtype=torch.uint64),
    )


def _like_branches(parents: Tensor, context: int) -> Tensor:
    tokens, lead = parents.shape[-1], _lead(parents)
    return parents.new_empty((*lead, tokens, context + tokens), dtype=torch.bool)


find_documents = DirectOperator(
    "document_blocks",
    "(Tensor ids, Tensor key_ids, int block_rows, int block_columns) -> (Tensor, Tensor, Tensor)",
    _find,
    fake=_like,
    tensors=2,
)
"""The buffers of the masks of documents, and the numbers and bits of their partial blocks (`PartialBlocks`)."""
mark_places = DirectOperator(
    "mark_places",
    "(Tensor elements, int block_rows, int block_columns, bool wants_bits) -> (Tensor, Tensor, Tensor)",
    _mark,
    fake=_like_marked,
    tensors=1,
)
"""The blocks in which a place lives (bool, ... × rows × columns of blocks); if asked for, numbers and bits of all."""
mark_branches = DirectOperator(
    "mark_branches",
    "(Tensor parents, int context) -> Tensor",
    _mark_branches,
    fake=_like_branches,
    tensors=1,
)
"""Drafted tokens × (context + these), bool: which keys each sees."""
