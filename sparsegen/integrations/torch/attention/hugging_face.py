"""Attention for Hugging Face's models, by `block_attention`.

    from transformers import AttentionInterface

    AttentionInterface.register("sparsegen", hugging_face_attention)
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="sparsegen")
    model(tokens, block_mask=mask)

The model hands further arguments of its call on to every layer's attention, and so a mask of blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.block_attention import block_attention
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors

REFUSED = ("s_aux", "position_bias", "head_mask")  # no kernel supports their effects


def hugging_face_attention(
    module: object,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    block_mask: BlockMaskTensor | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """Attention as ``transformers.AttentionInterface`` wants it.

    The last query stands beside the last key, as with a cache. Without an attention mask, and with one of padding
    alone, attention is causal where the module is (``module.is_causal``), unless there is one query.

    Args:
        query: batch × heads × queries × head_dim.
        key, value: batch × heads of keys × keys × head_dim.
        attention_mask: bool, batch × 1 × queries × keys, exact (which no kernel takes yet: ``elements`` of
            `block_attention`); or batch × keys, not 0 where a key is no padding.
        sliding_window: keys that a query sees, its own the last of them.
        block_mask: the mask for `block_attention`.
        more: other arguments of models; those that would change the result are refused.

    Returns:
        Batch × queries × heads × head_dim, contiguous, and None for the weights.

    Raises:
        OperandError: dropout, a mask of numbers, what else no kernel takes, or tensors that do not fit.
    """
    require_tensors(query=query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key)):
        if tensor.dim() != 4:
            raise OperandError(
                f"{name}: expected batch × heads × tokens × head_dim, got shape {tuple(tensor.shape)}"
            )
    if arguments.number(dropout, "dropout", OperandError):
        raise OperandError(
            f"dropout = {dropout:g}: block_attention drops no weights; set attention_dropout to 0"
        )
    for name in REFUSED:
        if more.get(name) is not None:
            raise OperandError(
                f"{name}: block_attention takes none; use another attn_implementation for this model"
            )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    span: dict[str, Any] = {
        "causal": arguments.flag(causal, "is_causal", OperandError) and query.shape[2] > 1
    }
    if sliding_window is not None:
        if not causal:
            raise OperandError(
                "sliding_window: a window of keys behind each query, which needs is_causal=True"
            )
        span |= {"causal": True, "window": sliding_window}
    elements = None
    if attention_mask is not None:
        elements, is_whole = _elements(attention_mask, key.shape[2])
        span = {} if is_whole else span
    out = block_attention(
        query, key, value, block_mask, elements=elements, scale=scaling, softcap=softcap, **span
    )
    return out.transpose(1, 2).contiguous(), None


def _elements(mask: Tensor, keys: int) -> tuple[Tensor, bool]:
    """Bools that broadcast to batch × heads × queries × keys, and whether they say all, and not padding alone."""
    require_tensors(attention_mask=mask)
    if mask.dim() == 2 and not mask.is_floating_point():
        return (mask != 0)[:, None, None, :keys], False
    if mask.dim() != 4 or mask.dtype != torch.bool:
        raise OperandError(
            f"attention_mask: expected torch.bool of batch × 1 × queries × keys, or integers of batch × keys, got "
            f"{mask.dtype} of shape {tuple(mask.shape)}; register transformers' sdpa_mask for this attention in its "
            "AttentionMaskInterface, which makes bools"
        )
    return mask[..., :keys], True
