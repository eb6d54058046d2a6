"""Traits of attention with block masks: the order of tokens and heads, and which of them have masks of their own."""

from __future__ import annotations

from enum import StrEnum


class TokenOrder(StrEnum):
    """Memory order of Q, K, V, O and their gradients, of a batch element.

    ``HEADS``: heads × tokens × head_dim, as `torch.nn.functional.scaled_dot_product_attention` takes them.
    ``TOKENS``: tokens × heads × head_dim, as FlashAttention does.
    """

    HEADS = "heads"
    TOKENS = "tokens"

    def shape(self, heads: int, tokens: int, head_dim: int) -> tuple[int, int, int]:
        """The shape of a batch element's array in this order."""
        return (heads, tokens, head_dim) if self is TokenOrder.HEADS else (tokens, heads, head_dim)


class MasksOf(StrEnum):
    """The parts of a batch that have a block mask of their own."""

    NOBODY = "nobody"  # there is none, every block is live
    ALL = "all"  # one mask for all
    ITEMS = "items"  # one for each element of the batch, which its heads share
    HEADS = "heads"  # one for each query head, which the elements of the batch share
    ITEMS_AND_HEADS = "items_and_heads"  # one for each query head of each batch element

    @property
    def are_of_items(self) -> bool:
        return self in (MasksOf.ITEMS, MasksOf.ITEMS_AND_HEADS)

    @property
    def are_of_heads(self) -> bool:
        return self in (MasksOf.HEADS, MasksOf.ITEMS_AND_HEADS)
