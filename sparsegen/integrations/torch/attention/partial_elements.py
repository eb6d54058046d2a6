"""Exact places of attention: bools become a mask of blocks and the bits of its partial blocks."""

from __future__ import annotations

from torch import Tensor

from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.attention_options import check_elements
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors

USUAL_BLOCK = (128, 128)  # of bools without a mask


def with_elements(
    elements: Tensor | PartialBlocks, mask: BlockMaskTensor | None, q: Tensor, k: Tensor
) -> tuple[BlockMaskTensor, PartialBlocks]:
    """The mask whose blocks hold a live place, and its partial blocks, as many of them as there are masks.

    Args:
        elements: see `block_attention`; they lie within the mask's blocks.
        q, k: batch × heads × tokens × head_dim.

    Raises:
        OperandError: bools that do not fit, or partial blocks of another mask.
    """
    if isinstance(elements, PartialBlocks):
        return _beside(elements, mask)
    require_tensors(elements=elements)
    if q.dim() == k.dim() == 4:  # the operator reports other shapes
        shape = (*q.shape[:3], k.shape[2])
        elements = elements[(None,) * (4 - elements.dim())] if elements.dim() < 4 else elements
        check_elements(elements, shape, q)
        elements = elements.expand(*elements.shape[:2], *shape[2:])
    block = USUAL_BLOCK if mask is None else mask.block
    live, partial = PartialBlocks.of_bools(elements, block)
    density, longest = 0.5, 0.0
    if mask is not None:
        live, density, longest = live & mask.blocks(), mask.density, mask.longest
    covered = BlockMaskTensor.from_blocks(live, block, partial.shape, density=density, longest=longest)
    return covered, _spread(partial, covered)


def _beside(partial: PartialBlocks, mask: BlockMaskTensor | None) -> tuple[BlockMaskTensor, PartialBlocks]:
    if mask is None:
        raise OperandError("elements: partial blocks lie within the blocks of a mask; pass it too")
    if (partial.shape, partial.block) != (mask.shape, mask.block):
        raise OperandError(
            f"elements: expected partial blocks of {mask}, got some over {partial.shape[0]} × {partial.shape[1]} in "
            f"blocks of {partial.block[0]} × {partial.block[1]}"
        )
    return mask, _spread(partial, mask)


def _spread(partial: PartialBlocks, mask: BlockMaskTensor) -> PartialBlocks:
    """The partial blocks with numbers for each mask, items × heads."""
    lead = (1, 1, *mask.lead)[-2:]
    own = partial.numbers[(None,) * (4 - partial.numbers.dim())]
    if own.dim() != 4 or any(n not in (1, m) for n, m in zip(own.shape[:2], lead, strict=True)):
        raise OperandError(
            f"elements: expected partial blocks for all, or as many as there are masks ({mask}), got numbers of shape "
            f"{tuple(partial.numbers.shape)}"
        )
    numbers = own.expand(*lead, *own.shape[2:]).contiguous()
    return PartialBlocks(partial.shape, partial.block, numbers, partial.bits)
