"""Masks of blocks from and to PyTorch's own forms: BSR, FlexAttention's masks, and counts with indices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import MatrixError, OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.calls.tensor_checks import require_dtype, require_tensors
from sparsegen.matrix import block_mask_formats
from sparsegen.matrix.block_mask import checked_blocks, grid


def from_torch_bsr(tensor: Tensor) -> BlockMaskTensor:
    """The mask of the blocks that a BSR tensor stores, whatever their values; its indices come over the host.

    Raises:
        OperandError: no tensor.
        MatrixError: another layout, or a batch of matrices.
    """
    require_tensors(tensor=tensor)
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
        OperandError: no `BlockMaskTensor`.
        MatrixError: blocks that do not divide the shape, which BSR has not.
    """
    check_mask(mask)
    require_dtype(dtype)
    host = mask.to_host()
    block_mask_formats.require_whole_blocks(host, "BSR")
    offsets, columns = (torch.from_numpy(part) for part in block_mask_formats.to_csr_of_blocks(host))
    values = torch.ones((columns.numel(), *mask.block), dtype=dtype)
    bsr = torch.sparse_bsr_tensor(offsets, columns, values, mask.shape, check_invariants=True)
    return bsr.to(mask.words.device)


def from_counts(
    counts: Tensor, indices: Tensor, block: tuple[int, int], shape: tuple[int, int], *, density: float = 0.5
) -> BlockMaskTensor:
    """The mask of counts and indices, as FlashAttention and cuDNN take them, without waiting for their device.

    Args:
        counts: integers, how many blocks of each row are live.
        indices: integers, rows × columns of blocks: a row's live columns first; the rest is not looked at.
        block, shape: of elements.
        density: the share of live blocks that is expected.

    Raises:
        OperandError: no tensors of integers.
        MatrixError: tensors of other sizes. What they hold is not checked.
    """
    for name, tensor in (("counts", counts), ("indices", indices)):
        require_tensors(**{name: tensor})
        if tensor.is_floating_point() or tensor.is_complex():
            raise OperandError(f"{name}: expected integers, got {tensor.dtype}")
    shape, block = checked_blocks(shape, block)
    layout = grid(shape, block)
    if tuple(counts.shape) != (layout.rows,) or tuple(indices.shape) != (layout.rows, layout.columns):
        raise MatrixError(
            f"{layout.rows} × {layout.columns} blocks need so many counts and indices, got shapes "
            f"{tuple(counts.shape)} and {tuple(indices.shape)}"
        )
    return BlockMaskTensor.from_blocks(_listed(counts, indices), block, shape, density=density)


def to_counts(mask: BlockMaskTensor) -> tuple[Tensor, Tensor]:
    """Counts (int32) and indices (int32, rows × columns of blocks) on the mask's device: live columns come first."""
    check_mask(mask)
    live = mask.blocks()
    indices = live.to(torch.uint8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return live.sum(dim=1, dtype=torch.int32), indices


def from_flex(flex: Any, item: tuple[int, int] = (0, 0), *, allow_partial: bool = False) -> BlockMaskTensor:
    """The mask of one item and head of FlexAttention's ``BlockMask``, without waiting for its device.

    Args:
        flex: a ``torch.nn.attention.flex_attention.BlockMask``.
        item: which of its batch and which head.
        allow_partial: take its partial blocks, in which a function says which elements are live, for live ones. By
            default masks that may have such blocks are refused.

    Raises:
        MatrixError: it is no such mask, has no such item, or may have partial blocks.
    """
    flex_type = _flex()
    if not isinstance(flex, flex_type):
        raise MatrixError(f"expected FlexAttention's BlockMask, got {type(flex).__name__}")
    item = arguments.pair(item, "item", MatrixError)
    allow_partial = arguments.flag(allow_partial, "allow_partial", MatrixError)
    batch, heads = flex.kv_num_blocks.shape[:2]
    if not (0 <= item[0] < batch and 0 <= item[1] < heads):
        raise MatrixError(f"item {item} is outside the mask's {batch} × {heads} items and heads")
    # Whether there are partial blocks is on the device; a mask that has room for none says it on the host.
    if not allow_partial and flex.kv_indices.shape[-1] and not _has_no_function(flex):
        raise MatrixError(
            "this mask may have partial blocks, in which a function says which elements are live; use "
            "allow_partial=True to take the whole of them"
        )
    live = _listed(flex.kv_num_blocks[item], flex.kv_indices[item])
    if flex.full_kv_num_blocks is not None:
        live |= _listed(flex.full_kv_num_blocks[item], flex.full_kv_indices[item])
    shape = tuple(int(length) for length in flex.seq_lengths)
    return BlockMaskTensor.from_blocks(live, tuple(flex.BLOCK_SIZE), (shape[0], shape[1]))


def to_flex(mask: BlockMaskTensor) -> Any:
    """The mask as FlexAttention's ``BlockMask`` of one item and head, all blocks full; made on the mask's device."""
    check_mask(mask)
    live, (counts, order) = mask.blocks(), to_counts(mask)
    rows, columns = mask.block

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return live[q // rows, kv // columns]

    return _flex().from_kv_blocks(
        torch.zeros_like(counts)[None, None],
        torch.zeros_like(order)[None, None],
        counts[None, None],
        order[None, None],
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


def _listed(counts: Tensor, indices: Tensor) -> Tensor:
    """bool, rows × columns of blocks: those that counts and indices list."""
    is_used = torch.arange(indices.shape[1], device=indices.device) < counts[:, None]
    # What is not used may be anything, and is sent to a column of its own.
    columns = torch.where(is_used, indices.long(), indices.shape[1])
    live = torch.zeros(indices.shape[0], indices.shape[1] + 1, dtype=torch.bool, device=indices.device)
    return live.scatter(1, columns, True)[:, :-1].contiguous()
