"""Attention of sequences' newest tokens over a paged cache of keys and values, as a function, by a custom operator.

Tables, lengths and chosen pages are data of the call: new ones prepare, compile and wait for nothing, and CUDA graphs
follow what lies in their tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention import paged_attention_kernels as kernels
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.operators import TokenOrder, member


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    pages: Tensor | None = None,
    counts: Tensor | None = None,
    *,
    tree: Tensor | None = None,
    scale: float | None = None,
    order: TokenOrder | str = TokenOrder.TOKENS,
    return_lse: bool = False,
) -> Any:
    """softmax(scale · Q · Kᵀ over chosen pages) · V, for the newest tokens of each sequence.

    The queries of a sequence are its last tokens, whose keys lie in the cache already: each sees all tokens before the
    first of them, and of themselves those up to its own, or those that ``tree`` names. A query without a visible token
    gets zeros, and an LSE of -inf. Numbers in ``page_table`` and ``pages`` are trusted. There is no gradient.

    Without a kernel of ours (on the CPU without the emulator, in float32, for sizes that no family takes) PyTorch
    gathers the pages and computes the same in float32; on a GPU and in the emulator the log says so, once for each
    reason.

    Args:
        q: batch × queries × heads × head_dim; 1 to 16 queries for kernels.
        k_pages, v_pages: pages × tokens of a page × heads of keys × head_dim, contiguous; pages of 16, 32, 64, 128 or
            256 tokens for kernels. Equally many query heads share each head of keys (GQA, MQA).
        page_table: int32, batch × places: the page that holds each page's worth of a sequence's tokens.
        lengths: int32, one for each sequence: its tokens, newest ones among them.
        pages: the pages that each head of keys attends to, by their places in ``page_table``: int32, batch × heads of
            keys × any number, in any order, each place once; or bool, batch × heads of keys × places
            (`masks.page_list` makes a list of it, in more launches). By default all.
        counts: int32, batch × heads of keys: how many of a list's numbers count. By default all of them.
        tree: bool, queries × queries: the newest tokens that each of them sees, as in a tree of drafts. By default
            those up to its own.
        scale: default 1 / √head_dim.
        order: ``heads`` for q of batch × heads × queries × head_dim and pages of heads × tokens × head_dim.
        return_lse: return O and the LSE, the natural logarithm of each query's sum of exponentials.

    Returns:
        O, like q, and with ``return_lse`` the LSE, batch × heads × queries, float32 (float64 for float64).

    Raises:
        OperandError: shapes, dtypes or devices that do not fit, by name.
    """
    require_tensors(q=q, k_pages=k_pages, v_pages=v_pages, page_table=page_table, lengths=lengths)
    require_tensors(
        **{n: t for n, t in (("pages", pages), ("counts", counts), ("tree", tree)) if t is not None}
    )
    if pages is None and counts is not None:
        raise OperandError("counts: of a list of pages, and there is none; pass pages= too")
    if pages is not None and pages.dtype is torch.bool:
        if counts is not None:
            raise OperandError("counts: pages of torch.bool count themselves; leave it out")
        pages, counts = kernels.page_list(pages)
    words = None if tree is None else kernels.tree_words(tree)
    head_dim = max(1, int(q.shape[-1])) if q.dim() else 1
    factor = head_dim**-0.5 if scale is None else arguments.factor(scale, "scale", OperandError)
    by_heads = member(TokenOrder, order, "order", OperandError) is TokenOrder.HEADS
    out, lse = _attention(q, k_pages, v_pages, page_table, lengths, pages, counts, words, factor, by_heads)
    return (out, lse) if arguments.flag(return_lse, "return_lse", OperandError) else out


def _fake(q: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    sizes = kernels.checked(q, *rest)
    return torch.empty_like(q, memory_format=torch.contiguous_format), kernels.statistics(q, sizes)


_attention = DirectOperator(
    "paged_attention",
    "(Tensor q, Tensor k_pages, Tensor v_pages, Tensor page_table, Tensor lengths, Tensor? pages, Tensor? counts, "
    "Tensor? tree, float scale, bool by_heads) -> (Tensor, Tensor)",
    kernels.attention,
    fake=_fake,
    tensors=8,
)
