"""Scores of blocks by the pooled tokens of Q and K, on a device: a launch reads these, another multiplies."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.backends.executor import Executor
from sparsegen.errors import OperandError
from sparsegen.kernels.launch import Launch
from sparsegen.operators import DType
from sparsegen.plan.block_masks import may_start_early
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.integers import ceil_div

FILE = "pooled_scores.cu"
THREADS, TILE = 256, 32  # of a thread block, and rows and columns of scores that it makes, as in the file
ROWS = 8  # of a thread that are on their way at once, as in the file
VECTOR_BYTES = 16
MOST_ITEMS = 65535  # limits of a grid's y and z


@dataclass(frozen=True, slots=True)
class PooledTokens:
    """Heads of tokens × head_dim, in memory by strides.

    Attributes:
        block: tokens that are pooled to one.
        strides: elements from one batch element, head and token to the next; columns are neighbours.
    """

    heads: int
    tokens: int
    block: int
    strides: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        """Number of blocks; the last one may be cut off."""
        return ceil_div(self.tokens, self.block)

    def together(self, parts: int) -> int:
        """Number of blocks that a thread block pools, with ``parts`` threads for a row."""
        groups = max(1, THREADS // parts)
        return groups // min(groups, ceil_div(self.block, ROWS))

    def sizes(self, parts: int) -> tuple[int, ...]:
        """The kernel's arguments."""
        return (self.heads, self.tokens, self.block, *self.strides, self.together(parts))


@dataclass(frozen=True, slots=True)
class PooledScores:
    """Scale · pooled Q · pooled Kᵀ of each head.

    Attributes:
        takes_most: the greatest of each block's tokens, column by column, in the place of their mean.
        is_aligned: true if both addresses are multiples of 16 bytes.
    """

    batch: int
    head_dim: int
    q: PooledTokens
    k: PooledTokens
    dtype: DType
    takes_most: bool
    scale: float
    is_aligned: bool

    @property
    def width(self) -> int:
        """Elements that a thread reads at once: 16 bytes where these divide rows and strides."""
        width = VECTOR_BYTES // self.dtype.itemsize
        divides = not any(side % width for side in (self.head_dim, *self.q.strides, *self.k.strides))
        return width if self.is_aligned and divides else 1


def bind_pooled_scores(executor: Executor, what: PooledScores) -> Callable[..., None]:
    """``bound(stream, q, k, pooled_q, pooled_k, scores)``, addresses all; the last three of float32: batch × heads ×
    blocks × head_dim, and batch × heads of Q × blocks of Q × blocks of K.

    Raises:
        OperandError: more items or heads than a launch takes.
        CompileError, DeviceUnavailableError: the kernels cannot be compiled.
    """
    q, k = what.q, what.k
    heads = q.heads + k.heads
    if max(what.batch, heads) > MOST_ITEMS:
        raise OperandError(
            f"q: a launch pools at most {MOST_ITEMS} items and as many heads, got {what.batch} and {heads}; pass parts"
        )
    pool, product = plain_launchers(executor, FILE, f"pool_blocks_{what.dtype}_{what.width}", "score_blocks")
    parts = what.head_dim // what.width
    threads, early = (THREADS, 1, 1), may_start_early(executor)
    across = max(ceil_div(tokens.blocks, tokens.together(parts)) for tokens in (q, k))
    pooling = Launch((across, heads, what.batch), threads, starts_early=early)
    given = what.head_dim, int(what.takes_most), *q.sizes(parts), *k.sizes(parts)
    pooled = pool.bind(pooling, *given, None, None, None, None)
    tiles = ceil_div(k.blocks, TILE), ceil_div(q.blocks, TILE)
    scoring = Launch((what.batch * q.heads, *tiles), threads, starts_early=early)
    (scale,) = struct.unpack("<i", struct.pack("<f", what.scale))
    sizes = q.blocks, k.blocks, what.head_dim, q.heads // k.heads, scale
    scored = product.bind(scoring, *sizes, None, None, None)

    def start(stream: int, q_at: int, k_at: int, pooled_q: int, pooled_k: int, scores: int) -> None:
        pooled(stream, q_at, k_at, pooled_q, pooled_k)
        scored(stream, pooled_q, pooled_k, scores)

    return start
