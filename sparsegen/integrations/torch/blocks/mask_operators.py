"""Custom operators that make the buffers of masks of blocks, each in one launch; without a device of ours, PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch.blocks import plain_masks
from sparsegen.integrations.torch.blocks.mask_launches import largest_on, make_on, of_scores, pack_on
from sparsegen.integrations.torch.calls.devices import kernel_device_of
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.matrix.block_mask import BlockMaskLayout, grid
from sparsegen.operators.attention.span import Band
from sparsegen.plan import mask_sources
from sparsegen.plan.mask_sources import Largest


def _share(scores: Tensor, share: float) -> Tensor:
    device = kernel_device_of(scores.device)
    if device is None:
        return plain_masks.share_of_rows(scores, share)
    return of_scores(mask_sources.share_of_rows(share), device, scores)


def _threshold(scores: Tensor, thresholds: Tensor | None, least: float) -> Tensor:
    device = kernel_device_of(scores.device)
    if device is None:
        return plain_masks.from_threshold(scores, thresholds, least)
    source = mask_sources.from_threshold(least)
    if thresholds is None:
        return of_scores(source, device, scores, 0)
    spread = thresholds.detach().float().expand(scores.shape).contiguous()
    return of_scores(source, device, scores, spread.data_ptr())


def _dilated_union(
    words: Tensor, rows: int, columns: int, group: int, by_rows: int, by_columns: int
) -> Tensor:
    device = kernel_device_of(words.device)
    if device is None:
        return plain_masks.dilated_union(words, rows, columns, group, by_rows, by_columns)
    words, layout = words.contiguous(), BlockMaskLayout(rows, columns)
    # Further away than all there are is as far.
    source = mask_sources.dilated_union(group, (min(by_rows, rows), min(by_columns, columns)))
    return make_on(source, device, words.device, words.shape[:-1], layout, words.data_ptr())


def _both(left: Tensor, right: Tensor, rows: int, columns: int, unites: bool) -> Tensor:
    device = kernel_device_of(left.device)
    if device is None:
        return plain_masks.both_masks(left, right, rows, columns, unites)
    lead = torch.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    left, right = (words.expand(*lead, words.shape[-1]).contiguous() for words in (left, right))
    source, layout = mask_sources.both(unites=unites), BlockMaskLayout(rows, columns)
    return make_on(source, device, left.device, lead, layout, left.data_ptr(), right.data_ptr())


def _listed(
    counts: Tensor, indices: Tensor, more_counts: Tensor | None, more_indices: Tensor | None, columns: int
) -> Tensor:
    device, lists = kernel_device_of(counts.device), (counts, indices, more_counts, more_indices)
    if device is None:
        return plain_masks.listed(*lists, columns)
    own = [None if part is None else part.int().contiguous() for part in lists]
    more_slots = 0 if more_indices is None else more_indices.shape[-1]
    source = mask_sources.listed(indices.shape[-1], more_slots)
    at = [0 if part is None else part.data_ptr() for part in own]
    layout = BlockMaskLayout(counts.shape[-1], columns)
    return make_on(source, device, counts.device, counts.shape[:-1], layout, *at)


def _window(sizes: tuple[int, ...], place: torch.device) -> Tensor:
    shape, block, band = (sizes[0], sizes[1]), (sizes[2], sizes[3]), Band(*sizes[4:])
    device = kernel_device_of(place)
    if device is None:
        return plain_masks.window(shape, block, band, place)
    return make_on(mask_sources.window(shape, block, band), device, place, (), grid(shape, block))


def _like(tensor: Tensor, layout: BlockMaskLayout, lead: tuple[int, ...]) -> Tensor:
    return tensor.new_empty((*lead, layout.words), dtype=torch.uint64)


def _like_blocks(blocks: Tensor, *_: object) -> Tensor:
    return _like(blocks, BlockMaskLayout(*blocks.shape[-2:]), tuple(blocks.shape[:-2]))


def _like_both(left: Tensor, right: Tensor, *_: Any) -> Tensor:
    lead = torch.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    return left.new_empty((*lead, left.shape[-1]), dtype=torch.uint64)


pack_blocks = DirectOperator(
    "pack_block_mask", "(Tensor live) -> Tensor", pack_on, fake=_like_blocks, tensors=1
)
"""The buffers of the masks of live blocks; see `pack_on`."""
pack_largest = DirectOperator(
    "pack_largest_blocks",
    "(Tensor scores, str among, int live) -> Tensor",
    lambda scores, among, live: largest_on(scores, Largest(among), live),
    fake=_like_blocks,
    tensors=1,
)
"""The buffers of the masks of the blocks with the largest scores; see `largest_on`."""
pack_share = DirectOperator(
    "pack_share_of_rows", "(Tensor scores, float share) -> Tensor", _share, fake=_like_blocks, tensors=1
)
"""The buffers of the masks of the fewest blocks of each row whose softmax sums to a share."""
pack_from_threshold = DirectOperator(
    "pack_from_threshold",
    "(Tensor scores, Tensor? thresholds, float least) -> Tensor",
    _threshold,
    fake=_like_blocks,
    tensors=2,
)
"""The buffers of the masks of the blocks with scores from a number, or from thresholds that broadcast, on."""
pack_dilated_union = DirectOperator(
    "pack_dilated_union",
    "(Tensor words, int rows, int columns, int group, int by_rows, int by_columns) -> Tensor",
    _dilated_union,
    fake=lambda words, *_: torch.empty_like(words),
    tensors=1,
)
"""The buffers of the unions of groups of masks, dilated by rows and columns of blocks."""
pack_both = DirectOperator(
    "pack_both_masks",
    "(Tensor left, Tensor right, int rows, int columns, bool unites) -> Tensor",
    _both,
    fake=_like_both,
    tensors=2,
)
"""The buffers of the unions or intersections of masks, whose leading dimensions broadcast."""
pack_listed = DirectOperator(
    "pack_listed_blocks",
    "(Tensor counts, Tensor indices, Tensor? more_counts, Tensor? more_indices, int columns) -> Tensor",
    _listed,
    fake=lambda counts, *rest: _like(
        counts, BlockMaskLayout(counts.shape[-1], rest[-1]), tuple(counts.shape[:-1])
    ),
    tensors=4,
)
"""The buffers of the masks of the columns that one or two lists name for each row."""
pack_window = DirectOperator(
    "pack_window",
    "(int[] sizes, Device device) -> Tensor",
    _window,
    fake=lambda sizes, place: torch.empty(
        grid((sizes[0], sizes[1]), (sizes[2], sizes[3])).words, dtype=torch.uint64, device=place
    ),
    tensors=0,
)
"""The buffer of the mask of a band. The sizes: queries, keys, a block's rows and columns; least, most and sinks of the
band."""
