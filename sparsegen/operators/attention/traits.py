"""Traits of attention with block masks: order of tokens and heads, whose masks, what becomes of scores, sinks."""

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


class ScoreChange(StrEnum):
    """Changes of scores z = s · Q · Kᵀ before the softmax.

    ``SOFTCAP``: c · tanh(z / c) (Gemma Team: Gemma 2, section 2). ``ALIBI``: z - slope · distance, a slope for each
    query head, where the last query stands beside the last key (Press et al.: Train short, test long, section 3).
    ``SOFTCAP_ALIBI``: both, c · tanh(z / c) - slope · distance.
    """

    PLAIN = "plain"
    SOFTCAP = "softcap"
    ALIBI = "alibi"
    SOFTCAP_ALIBI = "softcap_alibi"

    @classmethod
    def of(cls, *, softcap: bool, slopes: bool) -> ScoreChange:
        """The changes that a softcap and slopes make, as far as they are given."""
        if softcap:
            return cls.SOFTCAP_ALIBI if slopes else cls.SOFTCAP
        return cls.ALIBI if slopes else cls.PLAIN

    @property
    def has_softcap(self) -> bool:
        return self in (ScoreChange.SOFTCAP, ScoreChange.SOFTCAP_ALIBI)

    @property
    def has_slopes(self) -> bool:
        return self in (ScoreChange.ALIBI, ScoreChange.SOFTCAP_ALIBI)


class SinkLogits(StrEnum):
    """Learned logits in the softmax's sum that have no key and no value (OpenAI: gpt-oss model card, section 2.2)."""

    NONE = "none"
    HEADS = "heads"  # one for each query head
