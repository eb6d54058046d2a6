"""FlexAttention's function, for those of its uses that have masks alone, by `block_attention`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.block_attention import block_attention
from sparsegen.integrations.torch.blocks.block_mask_formats import flex_elements, from_flex, may_be_partial
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: object = None,
    block_mask: object = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: object = None,
    *,
    return_aux: object = None,
) -> Any:
    """`torch.nn.attention.flex_attention.flex_attention` with a mask and no other change of scores.

    Every call makes a `BlockMaskTensor` of the mask, without waiting for its device; many calls with one mask do better
    with ``block_attention(q, k, v, from_flex(block_mask))``. Of masks with partial blocks (`may_be_partial`) each call
    makes a bool for each place too (``elements`` of `block_attention`); causal masks and windows alone are
    ``causal=True`` and ``window=`` there.

    Args:
        query, key, value: batch × heads × tokens × head_dim.
        score_mod: None: other functions of scores are refused.
        block_mask: a ``BlockMask``; by default all places live.
        scale: default 1 / √head_dim.
        enable_gqa: let several query heads share a head of key and value.
        return_lse: return the LSE too; it has no gradient.
        kernel_options: options of FlexAttention's kernels; nothing here looks at them.
        return_aux: an ``AuxRequest`` of the LSE, in the place of return_lse.

    Raises:
        OperandError: a score_mod, largest scores, or tensors that do not fit, by name.
        MatrixError: ``block_mask`` is none.
    """
    require_tensors(query=query, key=key, value=value)
    if score_mod is not None:
        raise OperandError(
            "score_mod: kernels take masks alone; use torch.nn.attention.flex_attention for functions of scores, or "
            "softcap= of block_attention"
        )
    has_groups = query.dim() == key.dim() == 4 and query.shape[1] != key.shape[1]
    if not arguments.flag(enable_gqa, "enable_gqa", OperandError) and has_groups:
        raise OperandError(
            f"key: expected query's {query.shape[1]} heads, got {key.shape[1]}; enable_gqa=True lets several query "
            "heads share one"
        )
    mask = elements = None
    if block_mask is not None:
        mask = from_flex(block_mask, allow_partial=True)
        elements = flex_elements(block_mask) if may_be_partial(block_mask) else None
    wants_lse = arguments.flag(return_lse, "return_lse", OperandError) or bool(
        getattr(return_aux, "lse", False)
    )
    if return_aux is not None and not hasattr(return_aux, "max_scores"):
        raise OperandError(
            f"return_aux: expected FlexAttention's AuxRequest, got {type(return_aux).__name__}"
        )
    if getattr(return_aux, "max_scores", False):
        raise OperandError("return_aux: kernels give no largest scores; ask for the LSE alone")
    out, lse = block_attention(query, key, value, mask, elements=elements, scale=scale, return_lse=True)
    if return_aux is None:
        return (out, lse) if wants_lse else out
    from torch.nn.attention.flex_attention import AuxOutput

    return out, AuxOutput(lse=lse if wants_lse else None)
