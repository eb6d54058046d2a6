"""Attention with masks of blocks by PyTorch alone: for the CPU, for float64, and as what kernels are compared with.

Scores are there for some queries at a time (`CHUNK`), and are computed anew in the backward pass. 16-bit numbers are
multiplied and summed as float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegen.integrations.torch.attention.attention_options import (
    AttentionOptions,
    Beside,
    empty_like,
    memory_order,
    result_like,
    sink_gradient_like,
    statistics_like,
)
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks
from sparsegen.integrations.torch.blocks.plain_masks import blocks_of
from sparsegen.integrations.torch.calls.wide import WIDE, widened
from sparsegen.integrations.torch.pattern.plain import CHUNK
from sparsegen.matrix.block_mask import grid


def attention(
    q: Tensor, k: Tensor, v: Tensor, more: Beside, options: AttentionOptions
) -> tuple[Tensor, Tensor]:
    """O and the log-sum-exp of the scores of each query, of operands that were checked."""
    out, lse = result_like(q, v), statistics_like(q)
    with torch.autocast(q.device.type, enabled=False):  # sums stay wide
        for part in _parts(q, k, more, options):
            keys, values = part.of_keys(k), part.of_keys(v)
            scores, _ = part.scores(part.of_queries(q), keys, more, options)
            sums = scores.logsumexp(-1)
            if more.sink_logits is not None:
                sums = torch.logaddexp(sums, more.sink_logits[part.heads, None].to(sums.dtype))
            out[part.place] = (_weights(scores, sums) @ values).to(out.dtype)
            lse[part.place] = sums
    return out, lse


def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    more: Beside,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients by Q, K, V and the sinks' logits, where `attention` gave ``out`` and ``lse``."""
    order = memory_order(q)
    dq, dk, dv = (empty_like(t, order) for t in (q, k, v))
    wide = q.dtype if q.dtype in WIDE else torch.float32
    dk_sums, dv_sums = (torch.zeros_like(t, dtype=wide) for t in (k, v))
    d_sink_logits = sink_gradient_like(q, more.sink_logits).zero_()
    with torch.autocast(q.device.type, enabled=False):
        for part in _parts(q, k, more, options):
            queries, keys, values = part.of_queries(q), part.of_keys(k), part.of_keys(v)
            gradient, result = part.of_queries(dout), part.of_queries(out)
            scores, slope = part.scores(queries, keys, more, options)
            weights = _weights(scores, lse[part.place])
            delta = (gradient * result).sum(-1, keepdim=True)
            if more.sink_logits is not None:
                logits = more.sink_logits[part.heads, None].to(lse.dtype)
                sunk = _weights(logits[..., None], lse[part.place])[..., 0] * delta[..., 0]
                d_sink_logits[part.heads] -= sunk.sum(-1)
            ds = weights * (gradient @ values.mT - delta) * options.scale
            if slope is not None:
                ds = ds * slope
            dq[part.place] = (ds @ keys).to(dq.dtype)
            dk_sums[part.item, part.kv_head] += (ds.mT @ queries).sum(0)
            dv_sums[part.item, part.kv_head] += (weights.mT @ gradient).sum(0)
    return dq, dk.copy_(dk_sums), dv.copy_(dv_sums), d_sink_logits


@dataclass(frozen=True, slots=True)
class _Part:
    """Some queries of the heads that share a head of K and V, and what they see.

    Attributes:
        seen: bool, heads or 1 × queries or 1 × keys.
        shift: the key that query 0 stands beside.
    """

    item: int
    kv_head: int
    heads: slice
    queries: slice
    seen: Tensor
    shift: int

    @property
    def place(self) -> tuple[int, slice, slice]:
        return self.item, self.heads, self.queries

    def of_queries(self, tensor: Tensor) -> Tensor:
        """The part's rows of Q, O or a gradient of one, heads × queries × head_dim, wide."""
        return widened(tensor[self.place])

    def of_keys(self, tensor: Tensor) -> Tensor:
        """The part's rows of K or V, keys × head_dim, wide."""
        return widened(tensor[self.item, self.kv_head])

    def scores(
        self, q: Tensor, k: Tensor, more: Beside, options: AttentionOptions
    ) -> tuple[Tensor, Tensor | None]:
        """Heads × queries × keys, -inf where nothing is seen; and the slope of softcap there, if there is one."""
        scores, slope = q @ k.mT * options.scale, None
        if options.softcap:
            bent = (scores / options.softcap).tanh()
            scores, slope = bent * options.softcap, 1 - bent.square()
        if more.slopes is not None:
            i = torch.arange(self.queries.start, self.queries.stop, device=q.device)[:, None]
            away = (torch.arange(k.shape[0], device=q.device) - i - self.shift).abs()
            scores = scores - more.slopes[self.heads, None, None].to(scores.dtype) * away
        return scores.masked_fill(~self.seen, -torch.inf), slope


def _parts(q: Tensor, k: Tensor, more: Beside, options: AttentionOptions) -> Iterator[_Part]:
    """All of a call, so that no part has more than some `CHUNK` scores."""
    (batch, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
    if not (batch and heads and queries):
        return
    group = heads // kv_heads
    step = max(1, CHUNK // max(1, group * keys))
    live = None if more.words is None else blocks_of(more.words, grid((queries, keys), options.block))
    partial = None
    if more.numbers is not None and more.bits is not None:
        partial = PartialBlocks((queries, keys), options.block, more.numbers, more.bits)
    band = options.band(queries, keys)
    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        i = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
        j = torch.arange(keys, device=q.device)
        by_place = ((j - i >= band.least) | (j < band.sinks)) & (j - i <= band.most)
        for item in range(batch):
            for kv_head in range(kv_heads):
                of_heads = slice(kv_head * group, (kv_head + 1) * group)
                seen = by_place[None]
                if live is not None:
                    own = _of(live, item, of_heads)
                    by_block = own[:, i[:, 0] // options.block_rows][:, :, j // options.block_columns]
                    seen = seen & by_block
                if partial is not None:
                    of_group = range(of_heads.start, of_heads.stop)
                    seen = seen & torch.stack([partial.rows(item, head, rows) for head in of_group])
                yield _Part(item, kv_head, of_heads, rows, seen, keys - queries)


def _of(tensor: Tensor, item: int, heads: slice) -> Tensor:
    """The part of a batch element and some heads, of what has 1 where all share it."""
    one = tensor[item if tensor.shape[0] > 1 else 0]
    return one[heads] if one.shape[0] > 1 else one


def _weights(scores: Tensor, sums: Tensor) -> Tensor:
    """The softmax; zeros for queries that see nothing."""
    return (scores - sums[..., None]).exp().masked_fill(sums[..., None].isneginf(), 0)
