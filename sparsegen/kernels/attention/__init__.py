"""Attention over the nonzeros of a mask, in one launch."""

OPERATORS = ("sparse_attention",)
