"""The buffers of masks of blocks by PyTorch alone: without a device of ours, and in programs without sparsegen.

The launches of `mask_launches` and `mask_operators` make the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sparsegen.matrix.bits import WORD_BITS, words_for
from sparsegen.matrix.block_mask import BlockMaskLayout, grid
from sparsegen.operators.attention.span import Band
from sparsegen.plan.mask_sources import Largest


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


def share_of_rows(scores: Tensor, share: float) -> Tensor:
    """The buffers of the masks of the fewest blocks of each row whose softmax sums to a share."""
    most = torch.finfo(torch.float32).max
    wide = scores.detach().float().nan_to_num(nan=-torch.inf, posinf=most, neginf=-torch.inf)
    ordered, places = wide.sort(dim=-1, descending=True, stable=True)
    shares = ordered.softmax(-1)
    is_kept = (shares.cumsum(-1) - shares < share) & (ordered > -torch.inf)
    return packed_blocks(torch.zeros_like(is_kept).scatter(-1, places, is_kept))


def from_threshold(scores: Tensor, thresholds: Tensor | None, least: float) -> Tensor:
    """The buffers of the masks of the blocks with scores from a number, or from thresholds that broadcast, on."""
    scores = scores.detach().float()
    from_here = scores >= (least if thresholds is None else thresholds.detach().float())
    return packed_blocks(from_here & (scores > -torch.inf))


def dilated_union(
    words: Tensor, rows: int, columns: int, group: int, by_rows: int, by_columns: int
) -> Tensor:
    """The buffers of the unions of groups of masks, dilated by rows and columns of blocks."""
    live = blocks_of(words, BlockMaskLayout(rows, columns))
    if group > 1:
        grouped = live.unflatten(-3, (-1, group))
        live = grouped.any(-3, keepdim=True).expand(grouped.shape).flatten(-4, -3)
    size, padding = (2 * by_rows + 1, 2 * by_columns + 1), (by_rows, by_columns)
    grown = functional.max_pool2d(live.float().reshape(-1, 1, rows, columns), size, stride=1, padding=padding)
    return packed_blocks((grown > 0).reshape(live.shape))


def both_masks(left: Tensor, right: Tensor, rows: int, columns: int, unites: bool) -> Tensor:
    """The buffers of the unions or intersections of masks, whose leading dimensions broadcast."""
    layout = BlockMaskLayout(rows, columns)
    a, b = blocks_of(left, layout), blocks_of(right, layout)
    return packed_blocks(a | b if unites else a & b)


def listed(
    counts: Tensor, indices: Tensor, more_counts: Tensor | None, more_indices: Tensor | None, columns: int
) -> Tensor:
    """The buffers of the masks of the columns that one or two lists name for each row."""
    live = listed_blocks(counts, indices, columns)
    if more_counts is not None and more_indices is not None:
        live = live | listed_blocks(more_counts, more_indices, columns)
    return packed_blocks(live)


def listed_blocks(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """bool, ... × rows × columns of blocks: those that counts and indices list."""
    is_used = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    is_used = is_used & (indices >= 0) & (indices < columns)
    # Unused indices may be anything, and are sent to a column of their own.
    places = torch.where(is_used, indices.long(), columns)
    live = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=indices.device)
    return live.scatter(-1, places, True)[..., :-1].contiguous()


def window(shape: tuple[int, int], block: tuple[int, int], band: Band, place: torch.device) -> Tensor:
    """The buffer of the mask of the blocks in which a band lets a query see a key."""
    (queries, keys), layout = shape, grid(shape, block)
    i = torch.arange(layout.rows, device=place)[:, None] * block[0]
    j = torch.arange(layout.columns, device=place) * block[1]
    last_i, last_j = (i + block[0] - 1).clamp(max=queries - 1), (j + block[1] - 1).clamp(max=keys - 1)
    # A rectangle of places has every difference between those of two of its corners.
    is_before_most = j - last_i <= band.most
    return packed_blocks(is_before_most & ((last_j - i >= band.least) | (j < band.sinks)))


def window_of_sizes(sizes: tuple[int, ...], place: torch.device) -> Tensor:
    """The same by the sizes of `mask_operators.pack_window`."""
    return window((sizes[0], sizes[1]), (sizes[2], sizes[3]), Band(*sizes[4:]), place)


def blocks_of(words: Tensor, layout: BlockMaskLayout) -> Tensor:
    """bool, ... × rows × columns of blocks, of the buffers of masks, ... × words."""
    lead, signed = words.shape[:-1], words.view(torch.int64)
    bits = signed[..., : layout.row_order_at].reshape(*lead, layout.rows, layout.row_words)
    order = signed[..., layout.row_order_at : layout.column_bits_at].contiguous().view(torch.int32)
    places = torch.arange(WORD_BITS, device=words.device)
    ranked = ((bits[..., None] >> places) & 1).flatten(-2)[..., : layout.columns].bool()
    rows = order[..., : layout.rows, None].long().expand(ranked.shape)
    return torch.empty_like(ranked).scatter_(-2, rows, ranked)
