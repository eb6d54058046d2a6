"""Masks of blocks by what is known of tokens: their places, their documents, trees of them, and masks of elements.

Where blocks live in part, a function gives the mask of all blocks in which a place lives, and the places themselves
(``elements`` of `block_attention`). All is made on the tensors' device, without waiting for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.mask_operators import pack_dilated_union, pack_window
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks
from sparsegen.integrations.torch.blocks.place_operators import (
    find_documents,
    mark_branches,
    mark_places,
)
from sparsegen.integrations.torch.calls.tensor_checks import checked_device, require_tensors
from sparsegen.matrix.block_mask import checked_blocks
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.matrix.partial_blocks import SIDE_OF_BITS
from sparsegen.operators.attention.span import OPEN, Band

Side = int | tuple[int, int]


def window_blocks(
    shape: tuple[int, int],
    block: Side,
    *,
    causal: bool = False,
    window: int | None = None,
    sinks: int = 0,
    from_start: bool = False,
    device: torch.device | str | None = None,
) -> BlockMaskTensor:
    """The mask of the blocks in which causal, window and sinks let a query see a key.

    Combined with other masks (``|``, ``&``) it says where these may live. `block_attention` takes the same arguments
    itself, exact to the element, and then needs no such mask.

    Args:
        shape: queries and keys.
        causal, window, sinks, from_start: see `block_attention`.

    Raises:
        MatrixError: a shape or a block that is none.
        OperandError: a window or sinks that are none, or a device that PyTorch cannot use.
    """
    shape, block = checked_blocks(shape, block)
    queries, keys = shape
    band = Band.of(
        queries,
        keys,
        causal=arguments.flag(causal, "causal", OperandError),
        window=0 if window is None else arguments.whole(window, "window", OperandError, least=1, most=OPEN),
        sinks=arguments.whole(sinks, "sinks", OperandError, least=0, most=OPEN),
        from_start=arguments.flag(from_start, "from_start", OperandError),
    )
    place = checked_device(device)
    words = pack_window((*shape, *block, band.least, band.most, band.sinks), place)
    share = max(1, band.places(queries, keys)) / (queries * keys)
    return BlockMaskTensor(shape, block, words, share)


def document_blocks(
    ids: Tensor, block: Side, key_ids: Tensor | None = None, *, density: float = 0.5
) -> tuple[BlockMaskTensor, PartialBlocks]:
    """Attention within documents: the mask of the blocks that may hold a query and a key of one, and the bits of those
    that are partial, for ``elements``. Two launches make both.

    Where every document begins at a multiple of the blocks' sides, the mask alone is exact. There is room for the bits
    of all blocks, a bit for each place, and only those of partial blocks are written: `varlen_blocks` needs less
    memory for long sequences behind one another.

    Args:
        ids: integers, tokens or batch × tokens: which document a query is of. One below 0 is padding, which sees
            nothing and is not seen.
        block: queries and keys of a block, or one number for both; multiples of 16.
        key_ids: likewise of the keys; by default those of the queries. Ids that rise along the tokens give the fewest
            blocks.
        density: the share of live blocks that is expected.

    Returns:
        The mask, one or batch × 1 of them, and as many partial blocks.

    Raises:
        OperandError: no tensors of integers of such shapes, or a block without such bits.
        MatrixError: a block that is none.
    """
    given = {"ids": ids, "key_ids": ids if key_ids is None else key_ids}
    require_tensors(**given)
    for name, tensor in given.items():
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise OperandError(f"{name}: expected integers, got {tensor.dtype}")
        if tensor.dim() not in (1, 2) or tensor.shape[:-1] != ids.shape[:-1] or tensor.device != ids.device:
            raise OperandError(
                f"{name}: expected tokens or batch × tokens on one device, got shapes {tuple(ids.shape)} and "
                f"{tuple(tensor.shape)} on {ids.device} and {tensor.device}"
            )
    q, k = (tensor if tensor.dtype == torch.int32 else tensor.long() for tensor in given.values())
    if q.dtype != k.dtype:
        q, k = q.long(), k.long()
    shape, block = checked_blocks((q.shape[-1], k.shape[-1]), block)
    if block[0] % SIDE_OF_BITS or block[1] % SIDE_OF_BITS:
        raise OperandError(
            f"block: partial blocks have sides that are multiples of {SIDE_OF_BITS}, not {block[0]} × {block[1]}"
        )
    live, numbers, bits = find_documents(q, k, *block)
    mask = BlockMaskTensor(shape, block, live, density)
    return mask, PartialBlocks(shape, block, numbers, bits)


def tree_blocks(
    parents: Tensor, context: int, block: Side, *, density: float = 1.0
) -> tuple[BlockMaskTensor, Tensor]:
    """Speculative decoding: each drafted token sees the context, itself and those before it on its branch.

    Args:
        parents: integers, tokens or batch × tokens: which drafted token each follows; below 0 for one that follows the
            context.
        context: keys before the drafted ones, all of which every token sees.
        block: queries and keys of a block, or one number for both.
        density: the share of live blocks that is expected.

    Returns:
        The mask over the drafted tokens × (context + drafted tokens), one or batch × 1 of them, and bool of that shape.

    Raises:
        OperandError: no integers of such a shape.
        MatrixError: a block that is none.
    """
    require_tensors(parents=parents)
    if parents.is_floating_point() or parents.is_complex() or parents.dtype == torch.bool:
        raise OperandError(f"parents: expected integers, got {parents.dtype}")
    if parents.dim() not in (1, 2) or not parents.shape[-1]:
        raise OperandError(f"parents: expected tokens or batch × tokens, got shape {tuple(parents.shape)}")
    context = arguments.whole(context, "context", OperandError, least=0, most=MAX_INDEX)
    elements = mark_branches(parents, context)
    return from_elements(elements, block, density=density), elements


def from_elements(elements: Tensor, block: Side, *, density: float = 0.5) -> BlockMaskTensor:
    """Masks of the blocks that hold a true element; exact with ``elements=`` of `block_attention`.

    Args:
        elements: bool, ... × queries × keys, as dense attention's masks are.
        block: queries and keys of a block, or one number for both.
        density: the expected share of live blocks.

    Raises:
        OperandError: no matrices of bools.
        MatrixError: an invalid block.
    """
    require_tensors(elements=elements)
    if elements.dtype != torch.bool or elements.dim() < 2 or not elements.shape[-1] * elements.shape[-2]:
        raise OperandError(
            f"elements: expected torch.bool, ... × queries × keys, got {elements.dtype} of shape "
            f"{tuple(elements.shape)}"
        )
    shape, block = checked_blocks((elements.shape[-2], elements.shape[-1]), block)
    live, _, _ = mark_places(elements, *block, False)
    return BlockMaskTensor.from_blocks(live, block, shape, density=density)


def dilated(mask: BlockMaskTensor, by: Side) -> BlockMaskTensor:
    """Dilates masks: all blocks live that are at most ``by`` rows and columns of blocks away from a live one."""
    check_mask(mask)
    rows, columns = arguments.sides(by, "by", OperandError, least=0)
    arguments.whole(max(rows, columns), "by", OperandError, most=MAX_INDEX)
    if rows == columns == 0:
        return mask
    words = pack_dilated_union(mask.words, mask.layout.rows, mask.layout.columns, 1, rows, columns)
    density = min(1.0, mask.density * (2 * rows + 1) * (2 * columns + 1))
    return BlockMaskTensor(mask.shape, mask.block, words, density)


def union_of_group(mask: BlockMaskTensor, group: int) -> BlockMaskTensor:
    """Masks of ... × query heads, such that all heads of a group, which share a head of K and V, have what any has."""
    check_mask(mask)
    group = arguments.whole(group, "group", OperandError, least=1)
    if not mask.lead or mask.lead[-1] % group:
        raise OperandError(f"mask: expected a multiple of {group} heads, got {mask}")
    if group == 1:
        return mask
    words = pack_dilated_union(mask.words, mask.layout.rows, mask.layout.columns, group, 0, 0)
    return BlockMaskTensor(mask.shape, mask.block, words, min(1.0, group * mask.density))
