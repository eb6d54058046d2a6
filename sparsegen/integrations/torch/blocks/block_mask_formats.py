"""Masks of blocks from and to PyTorch's own forms: BSR, FlexAttention's masks, and counts with indices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import MatrixError, OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.mask_launches import expanded
from sparsegen.integrations.torch.blocks.mask_operators import pack_listed
from sparsegen.integrations.torch.blocks.partial_blocks import MOST_PARTIAL, PartialBlocks
from sparsegen.integrations.torch.blocks.plain_masks import listed_blocks
from sparsegen.integrations.torch.calls.tensor_checks import no_tensor, require_dtype, require_tensors
from sparsegen.matrix import block_mask_formats
from sparsegen.matrix.block_mask import checked_blocks, grid


def from_torch_bsr(tensor: Tensor) -> BlockMaskTensor:
    """The mask of the blocks that a BSR tensor stores, whatever their values; its indices come over the host.

    Raises:
        OperandError: no tensor.
        MatrixError: another layout, or a batch of matrices.
    """
    if not isinstance(tensor, Tensor):
        raise no_tensor(tensor, "tensor")
    if tensor.layout != torch.sparse_bsr or tensor.dim() != 2:
        raise MatrixError(
            f"expected a matrix of layout torch.sparse_bsr, got {tensor.layout} of shape {tuple(tensor.shape)}; use "
            ".to_sparse_bsr(blocksize)"
        )
    offsets, columns = (part.cpu().numpy() for part in (tensor.crow_indices(), tensor.col_indices()))
    block = (int(tensor.values().shape[1]), int(tensor.values().shape[2]))
    shape = (int(tensor.shape[0]), int(tensor.shape[1]))
    mask = block_mask_formats.from_csr_of_blocks(offsets, columns, block, shape)
    return BlockMaskTensor.from_host(mask, tensor.device)


def to_torch_bsr(mask: BlockMaskTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask as BSR with ones; it comes over the host.

    Raises:
        OperandError: no `BlockMaskTensor`, or several masks.
        MatrixError: blocks that do not divide the shape, which BSR has not.
    """
    check_mask(mask)
    require_dtype(dtype)
    host = mask.to_host()
    block_mask_formats.require_whole_blocks(host)
    offsets, columns = (torch.from_numpy(part) for part in block_mask_formats.to_csr_of_blocks(host))
    values = torch.ones((columns.numel(), *mask.block), dtype=dtype)
    bsr = torch.sparse_bsr_tensor(offsets, columns, values, mask.shape, check_invariants=True)
    return bsr.to(mask.words.device)


def from_counts(
    counts: Tensor, indices: Tensor, block: tuple[int, int], shape: tuple[int, int], *, density: float = 0.5
) -> BlockMaskTensor:
    """The mask of counts and indices, as FlashAttention and cuDNN take them, without waiting for their device.

    Args:
        counts: integers, ... × rows of blocks: how many blocks of each row are live.
        indices: integers, ... × rows × columns of blocks: a row's live columns first; the rest is not looked at. There
            may be fewer places for columns than the mask has. Columns that it has not are left out.
        block, shape: sizes in elements.
        density: the share of live blocks that is expected.

    Raises:
        OperandError: no tensors of integers, or on two devices.
        MatrixError: tensors of other sizes. What they hold is not checked.
    """
    for name, tensor in (("counts", counts), ("indices", indices)):
        require_tensors(**{name: tensor})
        if tensor.is_floating_point() or tensor.is_complex():
            raise OperandError(f"{name}: expected integers, got {tensor.dtype}")
    if counts.device != indices.device:
        raise OperandError(f"indices: expected them on {counts.device}, got {indices.device}")
    shape, block = checked_blocks(shape, block)
    layout = grid(shape, block)
    fits = counts.dim() > 0 and counts.shape[-1] == layout.rows and indices.shape[:-1] == counts.shape
    if not fits or indices.shape[-1] > layout.columns:
        raise MatrixError(
            f"{layout.rows} × {layout.columns} blocks need so many counts and indices, got shapes "
            f"{tuple(counts.shape)} and {tuple(indices.shape)}"
        )
    words = pack_listed(counts, indices, None, None, layout.columns)
    return BlockMaskTensor(shape, block, words, density)


def to_counts(mask: BlockMaskTensor) -> tuple[Tensor, Tensor]:
    """Counts (int32, ... × rows) and indices (int32, ... × rows × columns of blocks) on the mask's device: live columns
    come first.
    """
    check_mask(mask)
    live = mask.blocks()
    indices = live.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return live.sum(dim=-1, dtype=torch.int32), indices


def from_flex(
    flex: object, item: tuple[int, int] | None = None, *, allow_partial: bool = False
) -> BlockMaskTensor:
    """The masks of FlexAttention's ``BlockMask``, batch × heads, without waiting for its device.

    Args:
        flex: a ``torch.nn.attention.flex_attention.BlockMask``.
        item: one element of its batch and one head; by default all of them, and one mask if it has one of each.
        allow_partial: take its partial blocks, in which a function says which elements are live, for live ones
            (`flex_elements` says which they are). By default masks that may have such blocks are refused.

    Raises:
        MatrixError: it is no such mask, has no such item, or may have partial blocks.
    """
    flex_type = _flex()
    if not isinstance(flex, flex_type):
        raise MatrixError(f"expected FlexAttention's BlockMask, got {type(flex).__name__}")
    allow_partial = arguments.flag(allow_partial, "allow_partial", MatrixError)
    batch, heads = flex.kv_num_blocks.shape[:2]
    item = _checked_item(item, batch, heads)
    # Only the device knows whether there are partial blocks; a mask without room for any says so on the host.
    if not allow_partial and may_be_partial(flex):
        raise MatrixError(
            "this mask may have partial blocks, in which a function says which elements are live; use "
            "allow_partial=True to take the whole of them"
        )
    shape, block = _sizes(flex)
    columns = grid(shape, block).columns
    lists = flex.kv_num_blocks, flex.kv_indices, flex.full_kv_num_blocks, flex.full_kv_indices
    own = lists if item is None else tuple(part if part is None else part[item] for part in lists)
    return BlockMaskTensor(shape, block, pack_listed(*own, columns))


def may_be_partial(flex: Any) -> bool:
    """True if a ``BlockMask`` has room for partial blocks, and a function that masks within them."""
    return bool(flex.kv_indices.shape[-1]) and not _has_no_function(flex)


def flex_elements(flex: Any, item: tuple[int, int] | None = None) -> Tensor:
    """bool, batch × heads × queries × keys (one mask's alone: queries × keys): the elements that FlexAttention's
    ``BlockMask`` lets live, on its device: a full block's all, a partial block's where its function is true.

    Beside the mask by ``from_flex(flex, allow_partial=True)`` nothing of it is lost. One byte for each place.

    Raises:
        MatrixError: it is no such mask, or has no such item.
    """
    mask = from_flex(flex, item, allow_partial=True)
    (queries, keys), block = _sizes(flex)
    places = [torch.arange(size, device=mask.words.device) for size in (queries, keys)]
    batch, heads = flex.kv_num_blocks.shape[:2]
    item = _checked_item(item, batch, heads)
    lead = [torch.arange(size, device=mask.words.device) for size in (batch, heads)]
    if item is not None:
        lead = [numbers[one : one + 1] for numbers, one in zip(lead, item, strict=True)]
    b, h = lead[0][:, None, None, None], lead[1][:, None, None]
    partial = torch.broadcast_to(
        flex.mask_mod(b, h, places[0][:, None], places[1]), (len(lead[0]), len(lead[1]), queries, keys)
    )
    found = mask.expand() & partial.reshape(*mask.lead, queries, keys)
    if flex.full_kv_num_blocks is None:
        return found
    full = listed_blocks(flex.full_kv_num_blocks, flex.full_kv_indices, mask.layout.columns)
    whole = full if item is None else full[item]
    return found | expanded(whole.reshape(*mask.lead, *whole.shape[-2:]), block, mask.shape)


def partial_blocks_from_flex(flex: Any, *, room: int | None = None) -> PartialBlocks:
    """The partial blocks of FlexAttention's ``BlockMask``, whose function is asked for the places of these alone.

    Beside the mask by ``from_flex(flex, allow_partial=True)`` nothing of it is lost, as ``elements`` of
    `block_attention`. One bit for each place of a partial block.

    Args:
        flex: a ``torch.nn.attention.flex_attention.BlockMask``.
        room: most partial blocks of all its masks. By default as many as there are, for whose number this waits for
            the device; with more of them than ``room`` the device reports an error.

    Raises:
        MatrixError: it is no such mask.
    """
    if not isinstance(flex, _flex()):
        raise MatrixError(f"expected FlexAttention's BlockMask, got {type(flex).__name__}")
    if room is not None:
        room = arguments.whole(room, "room", MatrixError, least=1, most=MOST_PARTIAL)
    shape, block = _sizes(flex)
    columns = grid(shape, block).columns
    partial = listed_blocks(flex.kv_num_blocks, flex.kv_indices, columns)
    if flex.full_kv_num_blocks is not None:
        partial &= ~listed_blocks(flex.full_kv_num_blocks, flex.full_kv_indices, columns)
    if _has_no_function(flex):
        partial = torch.zeros_like(partial)
    return PartialBlocks.of_function(flex.mask_mod, partial, shape, block, room)


def to_flex(mask: BlockMaskTensor) -> Any:
    """The mask as FlexAttention's ``BlockMask``, all blocks full; made on the mask's device.

    Several masks are batch × heads, or heads alone.

    Raises:
        OperandError: no `BlockMaskTensor`, or more dimensions in front.
    """
    check_mask(mask)
    if len(mask.lead) > 2:
        raise OperandError(f"mask: FlexAttention takes batch × heads of masks, got {mask}")
    batch, heads = (1, 1, *mask.lead)[-2:]
    live = mask.blocks().reshape(batch, heads, mask.layout.rows, mask.layout.columns)
    counts, order = (part.reshape(batch, heads, *part.shape[len(mask.lead) :]) for part in to_counts(mask))
    rows, columns = mask.block

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return live[b if batch > 1 else 0, h if heads > 1 else 0, q // rows, kv // columns]

    return _flex().from_kv_blocks(
        torch.zeros_like(counts),
        torch.zeros_like(order),
        counts,
        order,
        BLOCK_SIZE=mask.block,
        mask_mod=mask_mod,
        seq_lengths=mask.shape,
    )


def _flex() -> Any:
    from torch.nn.attention import flex_attention

    return flex_attention.BlockMask


def _has_no_function(flex: Any) -> bool:
    from torch.nn.attention import flex_attention

    return flex.mask_mod is flex_attention.noop_mask


def _sizes(flex: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns a FlexAttention mask's shape and block."""
    (queries, keys), (rows, columns) = flex.seq_lengths, flex.BLOCK_SIZE
    return (int(queries), int(keys)), (int(rows), int(columns))


def _checked_item(item: tuple[int, int] | None, batch: int, heads: int) -> tuple[int, int] | None:
    """The item whose mask is asked for; None for all, where there are several."""
    if item is None:
        return (0, 0) if batch == heads == 1 else None
    item = arguments.pair(item, "item", MatrixError)
    if not (0 <= item[0] < batch and 0 <= item[1] < heads):
        raise MatrixError(f"item {item} is outside the mask's {batch} × {heads} items and heads")
    return item
