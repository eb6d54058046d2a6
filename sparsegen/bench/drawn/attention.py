"""Attention: masks of seven kinds by nonzeros, and masks of blocks that every call brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from sparsegen.bench.drawn.distribution import Distribution, Row
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.patterns import (
    Band,
    Documents,
    Drawn,
    GlobalTokens,
    MaskBlocks,
    Pattern,
    SlidingWindow,
    Strided,
)
from sparsegen.errors import ConfigError
from sparsegen.operators import (
    Block,
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    Chosen,
    Density,
    DType,
    MasksOf,
    PagedAttentionProblem,
    PageSize,
    Problem,
    Span,
    SparseAttentionProblem,
    TokenOrder,
)

HEAD_DIMS = (32, 64, 80, 96, 128)


def _window(draw: Draw, length: int) -> Pattern:
    return SlidingWindow(length, length, min(length, draw.whole(64, 1024)), draw.one_of((0, 4, 16)))


MASKS: Mapping[str, Callable[[Draw, int], Pattern]] = {
    "causal": lambda draw, length: SlidingWindow(length, length, length),
    "window": _window,
    "strided": lambda draw, length: Strided(length, length, draw.whole(16, 256)),
    "band": lambda draw, length: Band(
        length, length, min(length - 1, draw.whole(64, 512)), draw.number(0.9, 0.99), draw.seed()
    ),
    "blocks": lambda draw, length: MaskBlocks(
        length,
        length,
        draw.one_of((16, 32, 64, 128)),
        draw.one_of((0, 1, 2)),
        draw.one_of((1, 2, 3)),
        draw.seed(),
    ),
    "documents": lambda draw, length: Documents(length, length, draw.whole(64, 2048), draw.seed()),
    "global": lambda draw, length: GlobalTokens(
        length, length, min(length, draw.whole(32, 256)), draw.whole(1, 64)
    ),
}


class Attention(Distribution):
    operator: ClassVar[str] = SparseAttentionProblem.operator
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "300 to 8192 places, 1 to 32 heads of 32, 64, 80, 96 or 128 columns",
        "mask": "each as often: causal; a causal window of 64 to 1024 with 0, 4 or 16 sinks; strided by 16 to "
        "256; a band of 64 "
        "to 512 with .90 to .99 zeros outside; blocks of 16 to 128 near the diagonal and one to three at random; "
        "documents of 64 to 2048 places in the mean, packed; a window both ways of 32 to 256 with 1 to 64 global "
        "places",
        "types": "float16, bfloat16: of float32 there is no kernel",
    }

    def drawn(self, draw: Draw) -> Row:
        kind = draw.one_of(list(MASKS))
        length = draw.size(300, 8192)
        pattern = MASKS[kind](draw, length)
        dtype = draw.one_of((DType.FLOAT16, DType.BFLOAT16))
        problem = SparseAttentionProblem(
            length, length, draw.one_of(HEAD_DIMS), dtype, batch=draw.whole(1, 32)
        )
        return problem, pattern, kind

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, SparseAttentionProblem)
        return 4.0 * problem.m * problem.n * problem.k * problem.batch

    def nonzeros(self, problem: Problem, pattern: Pattern) -> int:
        """Estimates the nonzeros: at most the causal half of all places, except for masks that see ahead."""
        length = pattern.rows
        if isinstance(pattern, GlobalTokens):
            return 2 * length * (pattern.window + pattern.tokens)
        if isinstance(pattern, MaskBlocks):
            return min(length, pattern.block * (1 + 2 * pattern.neighbours + pattern.extra)) * length
        return length * length // 2


class BlockAttention(Distribution):
    """Forward: heads of tokens, and a mask of blocks for each."""

    operator: ClassVar[str] = BlockAttentionProblem.operator
    kind: ClassVar[type[BlockAttentionProblem]] = BlockAttentionProblem
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "300 to 8192 queries, as many keys or (in one of five) others, 1 to 8 heads of keys of 64 or 128 "
        "columns, each for 1, 2 or 4 heads of queries, 1 to 2 batch elements",
        "mask": "blocks of 64 or 128, one mask for all, each head or each head of each batch element, .05 to 1 of "
        "them live; none in one of five; all places seen, or causal, or a causal window of 64 to 1024 with 0 or "
        "16 sinks",
        "types": "float16, bfloat16; both orders of tokens and heads",
    }

    def drawn(self, draw: Draw) -> Row:
        queries = draw.size(300, 8192)
        keys = draw.size(300, 8192) if draw.chance(0.2) else queries
        side = draw.one_of((64, 128))
        masks = MasksOf.NOBODY
        if not draw.chance(0.2):
            masks = draw.one_of((MasksOf.ALL, MasksOf.HEADS, MasksOf.ITEMS_AND_HEADS))
        sees = draw.one_of(("full", "causal", f"causal:{draw.whole(64, 1024)}+{draw.one_of((0, 16))}"))
        problem = self.kind(
            queries=queries,
            keys=keys,
            kv_heads=draw.whole(1, 8),
            group=draw.one_of((1, 2, 4)),
            head_dim=draw.one_of((64, 128)),
            dtype=draw.one_of((DType.FLOAT16, DType.BFLOAT16)),
            block=Block(side, side),
            density=Density(draw.share(0.05, 1.0)),
            span=Span.parse(sees.removesuffix("+0")),
            masks=masks,
            order=draw.one_of(list(TokenOrder)),
            batch=draw.whole(1, 2),
        )
        return problem, Drawn(*problem.matrix_shape), sees.partition(":")[0]

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, BlockAttentionProblem)
        return 4.0 * problem.queries * problem.keys * problem.head_dim * problem.heads * problem.batch


class BlockAttentionBackward(BlockAttention):
    """Gradients of attention with block masks."""

    operator: ClassVar[str] = BlockAttentionBackwardProblem.operator
    kind = BlockAttentionBackwardProblem


class PagedAttention(Distribution):
    """The newest tokens of sequences over chosen pages of their keys."""

    operator: ClassVar[str] = PagedAttentionProblem.operator
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "1 query (two of three rows), or 2 to 16, on 1000 to 131072 tokens at most, 1 to 64 sequences from "
        "half of that length on, 1 to 8 heads of keys of 64, 128 or 256 columns, each for 1, 2, 4, 8 or 16 heads of "
        "queries",
        "pages": "of 16 to 256 tokens; .03 to 1 of them chosen, each head its own; all in one of four rows",
        "types": "float16, bfloat16; both orders of tokens and heads",
    }

    def drawn(self, draw: Draw) -> Row:
        chosen = Chosen.ALL if draw.chance(0.25) else Chosen.LISTED
        problem = PagedAttentionProblem(
            queries=1 if draw.chance(2 / 3) else draw.whole(2, 16),
            keys=draw.size(1000, 131072),
            kv_heads=draw.whole(1, 8),
            group=draw.one_of((1, 2, 4, 8, 16)),
            head_dim=draw.one_of((64, 128, 128, 256)),
            dtype=draw.one_of((DType.FLOAT16, DType.BFLOAT16)),
            page=PageSize(draw.one_of((16, 32, 64, 128, 256))),
            density=Density(draw.share(0.03, 1.0)),
            chosen=chosen,
            order=draw.one_of(list(TokenOrder)),
            batch=draw.whole(1, 64),
        )
        rows, most = problem.queries * problem.group, 256 if problem.head_dim <= 128 else 128
        if rows > most:
            raise ConfigError(f"{rows} queries that share keys are more than kernels take")
        return problem, Drawn(*problem.matrix_shape), str(chosen)

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, PagedAttentionProblem)
        p = problem
        return 4.0 * p.queries * p.keys * p.head_dim * p.heads * p.batch


DISTRIBUTIONS = (Attention(), BlockAttention(), BlockAttentionBackward(), PagedAttention())
