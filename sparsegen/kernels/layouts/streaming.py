"""How fast a sparse A can come from memory: what bounds every product with few columns."""

from __future__ import annotations

from sparsegen.operators import SpmmProblem

STREAMED_BYTES = 1.5e6  # of A in a microsecond on an H100, where one launch has just begun or is about to end
INDEX_BYTES = 2


def with_streaming(rate: float, problem: SpmmProblem) -> float:
    """A rate of multiply-adds in a microsecond, slowed down by the bytes of nonzeros and their indices.

    Each of them is multiplied n times: with many columns that hides, with one it is all there is.
    """
    streamed = STREAMED_BYTES / (problem.dtype.itemsize + INDEX_BYTES) * max(1, problem.n)
    return rate * streamed / (rate + streamed)
