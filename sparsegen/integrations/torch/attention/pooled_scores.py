"""Scores of blocks by the pooled tokens of Q and K, as a custom operator."""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from sparsegen.integrations.torch.calls.devices import DTYPES, kernel_device_of
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.plain_launches import PlainLaunches, stream_of
from sparsegen.plan.pooled_scores import VECTOR_BYTES, PooledScores, PooledTokens, bind_pooled_scores
from sparsegen.system.integers import ceil_div

MOST_STRIDE = 2**31 - 1  # as the kernel takes it


class Pooling(StrEnum):
    """The reduction of the tokens of a block to one, column by column."""

    MEAN = "mean"
    MAX = "max"


_launches = PlainLaunches(bind_pooled_scores)


def _scores(q: Tensor, k: Tensor, block_rows: int, block_columns: int, pooling: str, scale: float) -> Tensor:
    dtype = torch.promote_types(q.dtype, k.dtype)
    device = kernel_device_of(q.device) if dtype in DTYPES else None
    if device is None:
        return plain_pooled_scores(q, k, block_rows, block_columns, pooling, scale)
    q, k = (_strided(tensor.to(dtype)) for tensor in (q, k))
    batch, heads, _, head_dim = q.shape
    of_q, of_k = (
        PooledTokens(t.shape[1], t.shape[2], side, (t.stride(0), t.stride(1), t.stride(2)))
        for t, side in ((q, block_rows), (k, block_columns))
    )
    scores = q.new_empty((batch, heads, of_q.blocks, of_k.blocks), dtype=torch.float32)
    if not scores.numel():
        return scores
    pooled_q, pooled_k = (scores.new_empty((batch, t.heads, t.blocks, head_dim)) for t in (of_q, of_k))
    is_aligned = not (q.data_ptr() % VECTOR_BYTES or k.data_ptr() % VECTOR_BYTES)
    takes_most = Pooling(pooling) is Pooling.MAX
    what = PooledScores(batch, head_dim, of_q, of_k, DTYPES[dtype], takes_most, scale, is_aligned)
    given = (tensor.data_ptr() for tensor in (q, k, pooled_q, pooled_k, scores))
    _launches.of(device, what)(stream_of(q), *given)
    return scores


def _strided(tensor: Tensor) -> Tensor:
    """The tensor where it lies, if a kernel can read it there."""
    is_read = tensor.stride(3) == 1 and max(tensor.stride()) <= MOST_STRIDE
    return tensor if is_read else tensor.contiguous()


def plain_pooled_scores(
    q: Tensor, k: Tensor, block_rows: int, block_columns: int, pooling: str, scale: float
) -> Tensor:
    """The same by PyTorch alone."""
    with torch.autocast(q.device.type, enabled=False):
        # One product for each head of keys, which scales as it goes.
        keys = _pooled(k, block_columns, Pooling(pooling)).flatten(0, 1)
        queries = _pooled(q, block_rows, Pooling(pooling)).reshape(keys.shape[0], -1, keys.shape[2])
        scores = torch.baddbmm(queries.new_empty(1, 1, 1), queries, keys.mT, beta=0, alpha=scale)
        return scores.view(*q.shape[:2], -1, keys.shape[1])


def _pooled(tensor: Tensor, size: int, how: Pooling) -> Tensor:
    """... × blocks × head_dim, float32; the tensor is read once, in its own dtype."""
    tensor, parts = tensor.detach(), []
    rest = tensor.shape[-2] % size
    whole = tensor.shape[-2] - rest
    if whole:
        parts.append(tensor[..., :whole, :].unflatten(-2, (-1, size)))
    if rest:
        parts.append(tensor[..., whole:, :].unsqueeze(-3))
    pooled = [
        part.amax(-2).float() if how is Pooling.MAX else part.mean(-2, dtype=torch.float32) for part in parts
    ]
    return pooled[0] if len(pooled) == 1 else torch.cat(pooled, -2)


def _fake(q: Tensor, k: Tensor, block_rows: int, block_columns: int, *_: object) -> Tensor:
    sides = ceil_div(q.shape[2], block_rows), ceil_div(k.shape[2], block_columns)
    return q.new_empty((*q.shape[:2], *sides), dtype=torch.float32)


pooled = DirectOperator(
    "pooled_block_scores",
    "(Tensor q, Tensor k, int block_rows, int block_columns, str pooling, float scale) -> Tensor",
    _scores,
    fake=_fake,
    tensors=2,
)
"""scale · pooled Q · pooled Kᵀ, batch × heads of Q × blocks of Q × blocks of K, float32."""
