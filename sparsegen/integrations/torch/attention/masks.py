"""Masks of blocks for attention, made where tensors lie: by scores, by places, by documents, of other libraries.

    from sparsegen.integrations.torch import block_attention, masks

    scores = masks.pooled_scores(q, k, 128)
    out = block_attention(q, k, v, masks.topk_blocks(scores, 0.25, 128, (tokens, tokens)))

Each function gives a `BlockMaskTensor`, one mask or several; ``a | b`` and ``a & b`` put two together. Nothing waits
for the device. `sparsegen.masks` makes masks on the host.
"""

from __future__ import annotations

from sparsegen.integrations.torch.attention.paged_attention_kernels import page_list
from sparsegen.integrations.torch.attention.place_masks import (
    dilated,
    document_blocks,
    from_elements,
    tree_blocks,
    union_of_group,
    window_blocks,
)
from sparsegen.integrations.torch.attention.pooled_scores import Pooling
from sparsegen.integrations.torch.attention.score_masks import (
    Per,
    pooled_scores,
    threshold_blocks,
    top_p_blocks,
    topk_blocks,
)
from sparsegen.integrations.torch.attention.varlen import varlen_blocks
from sparsegen.integrations.torch.blocks.block_mask_formats import (
    flex_elements,
    from_counts,
    from_flex,
    from_torch_bsr,
    partial_blocks_from_flex,
    to_counts,
    to_flex,
    to_torch_bsr,
)

__all__ = [
    "Per",
    "Pooling",
    "dilated",
    "document_blocks",
    "flex_elements",
    "from_counts",
    "from_elements",
    "from_flex",
    "from_torch_bsr",
    "page_list",
    "partial_blocks_from_flex",
    "pooled_scores",
    "threshold_blocks",
    "to_counts",
    "to_flex",
    "to_torch_bsr",
    "top_p_blocks",
    "topk_blocks",
    "tree_blocks",
    "union_of_group",
    "varlen_blocks",
    "window_blocks",
]
